"""External teachers: what they are shown, what becomes of their answers, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from raynas.config import validate
from raynas.data import calibration
from raynas.data.augment import AugmentConfig
from raynas.data.config import CalibrationConfig, DataConfig
from raynas.data.load import Data, load_data
from raynas.data.loader import TrainLoader
from raynas.data.pixels import Normalisation, normalise
from raynas.documents import parse_yaml
from raynas.errors import ConfigError, UserError
from raynas.nets import build_supernet
from raynas.nets.weights import load_weights
from raynas.phases.teachers import load_teacher, load_teachers
from raynas.runs.networks import Network
from raynas.space import Space, load_space
from raynas.training.context import Context, Event, State
from raynas.training.loop import train_loop
from raynas.training.preflight import check_trainable
from raynas.training.recipe import Recipe
from raynas.training.streams import derive
from raynas.training.teacher_config import TeacherConfig, TeachersConfig
from raynas.training.teachers import Teacher, Teachers
from tests.scoring.test_calibrated_scores import make_hybrid_run
from tests.small_run import SPACE as RUN_SPACE
from tests.small_run import small_run
from tests.training.training_parts import SPACE, Keeping, few, plan, recipe, same, teacher_file

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A tiny ResNet of timm's for colour images of 16 x 16 pixels; digits are grey and of 8 x 8."""
    return teacher_file(tmp_path_factory.mktemp("teacher") / "weights.safetensors")


def network_of(teacher: dict[str, Any]) -> nn.Module:
    model = timm.create_model(teacher["timm"], num_classes=10)
    model.load_state_dict(load_weights(teacher["weights"]))
    return model.eval()


def answers_of(model: nn.Module, pixels: Tensor, sharpen: float = 1.0) -> Tensor:
    """What a model says of grey pixels uint8 [batch, 1, 8, 8], resized by Pillow, with timm's normalisation of it."""
    images = [
        Image.fromarray(image[0].float().numpy() / 255).resize((16, 16), Image.Resampling.BICUBIC) for image in pixels
    ]
    colours = torch.stack([torch.tensor(np.array(image)) for image in images])[:, None].expand(-1, 3, -1, -1)
    with torch.no_grad():
        return (sharpen * model((colours - 0.5) / 0.5)).softmax(1)


def pixels_of(positions: range) -> Tensor:
    data = few()
    return torch.stack([torch.as_tensor(data.train[i][0]) for i in positions])


def test_a_teacher_sees_images_as_it_was_trained_on_them(resnet: dict[str, Any]) -> None:
    pixels, data = pixels_of(range(5)), few()
    teachers = Teachers(
        TeachersConfig(models=(one := TeacherConfig(**resnet),) * 2, sharpen=5.0), [load_teacher(one, data)] * 2, data
    )
    expected = answers_of(network_of(resnet), pixels, sharpen=5.0)
    assert expected.std() > 1e-3
    torch.testing.assert_close(
        teachers.probabilities(normalise(pixels, data.normalisation)), expected, rtol=1e-3, atol=1e-5
    )


def test_colours_for_a_grey_teacher() -> None:
    """As Pillow converts them, to within its rounding."""

    class Seeing(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images

    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    images = (torch.tensor(pixels).permute(2, 0, 1)[None] / 255 - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(
        std
    ).view(3, 1, 1)
    seen = Teacher("grey", Seeing(), Normalisation((0.0,), (1.0,)), (6, 6)).logits(images, Normalisation(mean, std))
    assert (seen[0, 0] * 255 - torch.tensor(grey)).abs().max() <= 1


def test_the_largest_subnet_of_a_run_teaches(tmp_path: Path) -> None:
    """It sees images normalised as in its own run, which split them otherwise."""
    run, data, own = small_run(tmp_path / "run"), few(), DataConfig(name="digits", seed=1)
    run.write_yaml("preset.yaml", {"data": own})
    teacher = load_teacher(TeacherConfig(run=str(run.path)), data)
    torch.manual_seed(0)
    supernet = build_supernet(RUN_SPACE).eval()
    pixels = pixels_of(range(4))
    with torch.no_grad():
        expected = supernet(normalise(pixels, load_data(own).normalisation), RUN_SPACE.largest())
        found = teacher.logits(normalise(pixels, data.normalisation), data.normalisation)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match="cannot take images of 12 x 12 pixels: expected images"):
        load_teacher(TeacherConfig(run=str(run.path), size=12), data)


class Second(Context):
    """The second of two ranks, with the first one's teachers and buffers."""

    def __init__(self, first: nn.Module):
        super().__init__()
        self.rank, self.world_size = 1, 2
        self.buffers = iter([buffer for buffer in first.buffers() if buffer.is_floating_point()])

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def all_reduce(self, tensor: Tensor, op: str = "sum") -> None:
        tensor += next(self.buffers)


def test_batch_norms_of_a_run_s_subnet_are_calibrated_once_where_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_hybrid_run(tmp_path / "run", space := load_space("digits/nasvit"))
    expected = run.model(Network(space.largest(), "inherited")).state_dict()
    drawn: list[int] = []
    draw = calibration.calibration_batches

    def counting(data: Data, augment: AugmentConfig, config: CalibrationConfig) -> Tensor:
        drawn.append(config.images)
        return draw(data, augment, config)

    monkeypatch.setattr(calibration, "calibration_batches", counting)
    settings = recipe(teachers={"models": [{"run": str(run.path)}]})

    def loaded() -> Teachers:
        teachers = load_teachers(settings, few())
        assert teachers is not None
        return teachers

    first, second = loaded(), loaded()
    assert drawn == [] and not same(first.teachers[0].network.state_dict(), expected)
    told: list[Event] = []
    for _ in range(2):  # of the same process
        first.join(Context(told.append))
        first.leave()
    assert drawn == [96] and [event["text"] for event in told] == [
        f"  calibrating the batch norms of largest of {run.path}"
    ]
    found = first.teachers[0].network.state_dict()
    assert same(found, expected)
    second.join(Second(first.teachers[0].network))
    assert drawn == [96] and same(second.teachers[0].network.state_dict(), expected)
    of_run, other = load_teachers(settings, few()), make_hybrid_run(tmp_path / "run", space, seed=6)
    assert of_run is not None and of_run.fingerprints == first.fingerprints
    assert other.path == run.path and loaded().fingerprints != first.fingerprints


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_their_answers_are_the_targets(resnet: dict[str, Any], weight: float) -> None:
    """A step of SGD towards the answers and, for the rest, the smoothed labels; the images are mixed by nothing."""
    settings = recipe(
        opt="momentum", momentum=0.0, weight_decay=0.0, lr=0.1, warmup_epochs=0, epochs=1, batch_size=96, smoothing=0.1,
        teachers={"models": [resnet], "sharpen": 3.0, "weight": weight},
    )  # fmt: skip
    only = SPACE.fix(SPACE.largest())
    trained = train_loop(only, few(), plan(), settings, teachers=load_teachers(settings, few()))
    torch.manual_seed(derive(0, "weights"))
    model = build_supernet(only)
    loader = TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0))
    ((images, labels),), (indices,) = list(loader.epoch(0)), list(loader.indices(0))
    answers = answers_of(network_of(resnet), pixels_of(range(96))[indices], sharpen=3.0)
    targets = weight * answers + (1 - weight) * (0.9 * F.one_hot(labels, 10) + 0.01)
    F.cross_entropy(model(images), targets).backward()
    learnt = trained.model.state_dict()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(learnt[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-5, rtol=1e-4)


def step_by_hand(only: Space, model: nn.Module, settings: Recipe, loss: Callable[..., Tensor]) -> None:
    """Compare a step of training by SGD with the gradient of a loss of the model, images, labels and their indices."""
    trained = train_loop(only, few(), plan(), settings, teachers=load_teachers(settings, few()))
    loader = TrainLoader(few(), batch_size=96, seed=derive(0, "data", 0))
    ((images, labels),), (indices,) = list(loader.epoch(0)), list(loader.indices(0))
    loss(model, images, labels, indices).backward()
    learnt = trained.model.state_dict()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
        torch.testing.assert_close(learnt[name], parameter.detach() - 0.1 * parameter.grad, atol=1e-5, rtol=1e-4)


SGD = {
    "opt": "momentum", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.1, "warmup_epochs": 0, "epochs": 1,
    "batch_size": 96, "smoothing": 0.1,
}  # fmt: skip


def test_hard_answers_are_the_most_probable_class(resnet: dict[str, Any]) -> None:
    """DeiT's hard distillation without a token: half the loss for the labels, half for the teacher's choice."""
    settings = recipe(**SGD, teachers={"models": [resnet], "weight": 0.5, "hard": True})
    only = SPACE.fix(SPACE.largest())
    torch.manual_seed(derive(0, "weights"))

    def loss(model: nn.Module, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        choices = answers_of(network_of(resnet), pixels_of(range(96))[indices]).argmax(1)
        logits = model(images)
        smoothed = F.cross_entropy(logits, labels, label_smoothing=0.1)
        return 0.5 * smoothed + 0.5 * F.cross_entropy(logits, choices)

    step_by_hand(only, build_supernet(only), settings, loss)


@pytest.mark.parametrize("hard", [True, False])
def test_a_distillation_token_learns_from_teachers_and_the_class_token_from_labels(
    resnet: dict[str, Any], hard: bool
) -> None:
    """DeiT's loss: (1 - weight) x that of the class token's logits + weight x that of the distillation token's."""
    settings = recipe(**SGD, teachers={"models": [resnet], "weight": 0.3, "hard": hard})
    only = SPACE.fix(SPACE.largest())
    only = only.replace(constants=only.constants.model_copy(update={"distillation_token": True}))
    torch.manual_seed(derive(0, "weights"))

    def loss(model: nn.Module, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        answers = answers_of(network_of(resnet), pixels_of(range(96))[indices])
        image, distilled = model(images, distilled=True).unbind(1)
        taught = F.cross_entropy(distilled, answers.argmax(1) if hard else answers)
        return 0.7 * F.cross_entropy(image, labels, label_smoothing=0.1) + 0.3 * taught

    step_by_hand(only, build_supernet(only), settings, loss)


def test_without_teachers_both_tokens_learn_from_labels_by_their_mean() -> None:
    only = SPACE.fix(SPACE.largest())
    only = only.replace(constants=only.constants.model_copy(update={"distillation_token": True}))
    torch.manual_seed(derive(0, "weights"))

    def loss(model: nn.Module, images: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        mean = model(images, distilled=True).mean(1)
        return F.cross_entropy(mean, labels, label_smoothing=0.1)

    step_by_hand(only, build_supernet(only), recipe(**SGD), loss)


@pytest.mark.parametrize("objective", ["inplace_distillation", "alpha_divergence"])
@pytest.mark.parametrize("patches", [True, False])
def test_a_distillation_token_in_every_kind_of_step(resnet: dict[str, Any], objective: str, patches: bool) -> None:
    """The other subnets' tokens learn from the largest's: the class token from the class token's, and so on."""
    constants = SPACE.constants.model_copy(update={"distillation_token": True, "token_head": patches})
    space = SPACE.replace(constants=constants)
    changes: dict[str, Any] = {"token_labels": {"mixing": "none"}} if patches else {"mixup": 0.8, "accumulate": 2}
    settings = recipe(**{**SGD, **changes}, teachers={"models": [resnet], "weight": 0.5, "hard": True})
    check_trainable(space, few(), plan("sandwich", objective=objective), settings)
    trained = train_loop(
        space, few(), plan("sandwich", objective=objective), settings, teachers=load_teachers(settings, few())
    )
    torch.manual_seed(derive(0, "weights"))
    before = build_supernet(space).state_dict()
    moved = {name for name, value in trained.weights.items() if not torch.equal(value, before[name])}
    assert {"head.weight", "distillation_head.weight", "stem.4.class_token"} <= moved


def test_a_distillation_token_leaves_no_loss_of_the_class_token_out(resnet: dict[str, Any]) -> None:
    space = SPACE.replace(constants=SPACE.constants.model_copy(update={"distillation_token": True}))
    with pytest.raises(ConfigError, match=r"teachers\.weight 1 leaves the class token nothing to learn"):
        check_trainable(space, few(), plan(), recipe(teachers={"models": [resnet]}))


@pytest.mark.parametrize("name", ["digits/twins", "digits/s3", "digits/nasvit"])
def test_families_without_a_class_token_have_no_distillation_token(name: str) -> None:
    space = load_space(name)
    with pytest.raises(ConfigError, match=r"stands beside a class token, which family .* does not have"):
        space.replace(constants=space.constants.model_copy(update={"distillation_token": True}))


class Killed(Exception):
    """Stands for a kill."""


class Dying(Keeping):
    """Dies with its second checkpoint, at the end of the first epoch."""

    def save(self, state: State, score: float) -> None:
        super().save(state, score)
        if len(self.checkpoints()) == 2:
            raise Killed


@pytest.mark.parametrize("augment", [{}, {"hflip": 0.5}])
def test_resumed_with_teachers_equals_uninterrupted(
    resnet: dict[str, Any], tmp_path: Path, augment: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With answers that are kept (nothing is random: each image is asked about once) and with fresh ones."""
    asked: list[int] = []
    logits = Teacher.logits

    def counting(self: Teacher, images: Tensor, normalisation: Any) -> Tensor:
        asked.append(len(images))
        return logits(self, images, normalisation)

    settings = recipe(
        epochs=2, teachers={"models": [resnet]}, augment=augment, checkpoints={"every_steps": 1}, accumulate=2,
        batch_size=30, health={"probe_every": 2},
    )  # fmt: skip
    monkeypatch.setattr(Teacher, "logits", counting)
    whole = train_loop(SPACE, few(62), plan(), settings, teachers=load_teachers(settings, few(62)))
    assert sum(asked) == 1 + (2 * 60 if augment else 62)  # once to try it; 60 of the images fill an epoch's steps
    with pytest.raises(Killed):
        train_loop(SPACE, few(62), plan(), settings, Dying(tmp_path), teachers=load_teachers(settings, few(62)))
    torch.manual_seed(99)
    resumed = train_loop(SPACE, few(62), plan(), settings, Keeping(tmp_path), teachers=load_teachers(settings, few(62)))
    assert same(resumed.weights, whole.weights)
    if not augment:
        monkeypatch.setattr("raynas.training.teachers.CACHED_UP_TO", 0)
        fresh = train_loop(SPACE, few(62), plan(), settings, teachers=load_teachers(settings, few(62)))
        for name in whole.weights:
            torch.testing.assert_close(fresh.weights[name], whole.weights[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": "/nowhere/weights.pth"}, "/nowhere/weights.pth: there is no such file"),
        ({"timm": "test_resnett"}, "timm has no model 'test_resnett' (did you mean 'test_resnet'?)"),
        ({"options": {"num_classes": 12}}, "holds weights of another model than test_resnet: fc.weight is [10, 96]"),
        ({"options": {"in_chanels": 1}}, "timm cannot make test_resnet with"),
        ({"timm": None, "weights": None, "run": "/nowhere"}, "/nowhere is not a run directory"),
        ({"timm": None, "weights": None, "network": "original"}, "original is the model that raynas adapt begins with"),
    ],
)
def test_teachers_that_cannot_be_had_are_told_before_training(
    resnet: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    settings = recipe(teachers={"models": [resnet | changes]})
    with pytest.raises(UserError) as caught:
        load_teachers(settings, few())
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_teacher_of_other_classes(resnet: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_resnet", num_classes=7).state_dict(), file)
    with pytest.raises(ConfigError, match="teacher test_resnet knows 7 classes, digits has 10"):
        load_teacher(TeacherConfig(**resnet | {"weights": str(file), "options": {"num_classes": 7}}), few())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "a teacher is a timm model (timm: NAME) or a network of a run directory (run: PATH)"),
        ("{timm: test_vit, run: runs/a}", "a teacher is a timm model"),
        ("{timm: test_vit}", "teacher test_vit: say where its weights are: weights: FILE, or pretrained: true"),
        ("{timm: test_vit, weights: a.pth, pretrained: true}", "say where its weights are"),
        ("{run: runs/a, pretrained: true}", "teacher runs/a: weights, pretrained and options are of timm models"),
        ("{timm: test_vit, weights: 's3://key:secret@bucket/x'}", "must hold no credentials"),
        ("{tim: test_vit}", "unknown key 'tim' (did you mean 'timm'?)"),
    ],
)
def test_wrong_teachers_are_told_when_the_preset_is_read(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(TeachersConfig, parse_yaml(f"models: [{text}]", "p.yaml"))
    assert message in str(caught.value) and str(caught.value).startswith("p.yaml:1: models.0")
