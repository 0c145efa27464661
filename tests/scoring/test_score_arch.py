from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raynas.data.images import choose_images
from raynas.data.pixels import Normalisation
from raynas.errors import UserError
from raynas.nets import build_supernet
from raynas.scoring.score_arch import placed_images, score_arch
from raynas.scoring.scored_supernet import from_tensors
from raynas.scoring.shared_weights import changed, checksums, put_together, take_apart
from raynas.space import Arch, Space

Digits = tuple[Tensor, Tensor, Normalisation]


def test_score_equals_the_extracted_subnet_s_own_answers(space: Space, archs: list[Arch], digits: Digits) -> None:
    pixels, labels, statistics = digits
    supernet = build_supernet(space).eval()
    for arch in archs[:4]:
        score = score_arch(supernet, arch, pixels, labels, statistics, batch_size=16)
        x = (pixels.double() / 255 - statistics.mean[0]) / statistics.std[0]
        with torch.no_grad():
            logits = supernet.extract(arch).double()(x).numpy()
        order = np.argsort(-logits, axis=1)
        expected_loss = np.mean(
            [math.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, labels.tolist(), strict=True)]
        )
        assert score.top5 is not None
        assert (score.top1 == (order[:, 0] == labels.numpy())).all()
        assert (score.top5 == (order[:, :5] == labels.numpy()[:, None]).any(1)).all()
        assert score.loss == pytest.approx(expected_loss, rel=1e-5)
        assert score.top1.sum() <= score.top5.sum()


class _Constant(nn.Module):
    """Logits that do not depend on the image."""

    def __init__(self, logits: list[float]):
        super().__init__()
        self.register_buffer("logits", torch.tensor(logits))

    def forward(self, x: Tensor, arch: object) -> Tensor:
        return self.get_buffer("logits").expand(len(x), -1)


def test_top5_needs_more_than_five_classes(archs: list[Arch]) -> None:
    pixels, labels = torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2, 3])
    score = score_arch(_Constant([1.0, 0, 0, 0, 0]).eval(), archs[0], pixels, labels, Normalisation((0.0,), (1.0,)))
    assert score.top5 is None and score.top1.tolist() == [True, False, False, False]
    six = _Constant([6.0, 5, 4, 3, 2, 1]).eval()
    score = score_arch(six, archs[0], pixels, torch.tensor([0, 4, 5, 5]), Normalisation((0.0,), (1.0,)))
    assert score.top5 is not None and score.top5.tolist() == [True, True, False, False]


def test_training_mode_and_logits_that_are_not_finite_are_refused(archs: list[Arch]) -> None:
    pixels, labels = torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1])
    with pytest.raises(RuntimeError, match="eval mode"):
        score_arch(_Constant([1.0, 0.0]).train(), archs[0], pixels, labels, Normalisation((0.0,), (1.0,)))
    with pytest.raises(FloatingPointError, match="not finite"):
        score_arch(_Constant([math.nan, 0.0]).eval(), archs[0], pixels, labels, Normalisation((0.0,), (1.0,)))


def test_a_module_put_together_again_computes_the_same_without_memory_of_its_own(
    space: Space, archs: list[Arch]
) -> None:
    class Odd(nn.Module):
        """Shared parameters, buffers outside the state dict, half precision, a number."""

        def __init__(self) -> None:
            super().__init__()
            self.net = build_supernet(space)
            self.again = self.net
            self.brief = nn.Parameter(torch.arange(3.0).bfloat16())
            self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    module = Odd().eval()
    skeleton, arrays = take_apart(module)
    assert all(tensor.is_meta for tensor in skeleton.module.parameters())
    assert not any(tensor.is_meta for tensor in module.parameters())
    sums = checksums(arrays)
    again = put_together(skeleton, arrays)
    x = torch.randn(3, 1, 8, 8)
    with torch.inference_mode():
        assert torch.equal(again.net(x, archs[0]), module.net(x, archs[0]))  # type: ignore[operator]
    assert again.get_parameter("brief").dtype == torch.bfloat16 and again.get_parameter("brief").tolist() == [0, 1, 2]  # type: ignore[union-attr, operator]
    assert again.get_buffer("scale") == 2
    for (_, ours), (_, theirs) in zip(again.named_parameters(), module.named_parameters(), strict=True):
        assert ours.data_ptr() == theirs.data_ptr() and not ours.requires_grad
    assert changed(arrays, sums) == []
    with torch.no_grad():
        module.brief[1] = 5
    assert changed(arrays, sums) == ["brief"]


def test_fewer_images_are_always_the_same_and_nested() -> None:
    assert set(choose_images(100, 10)) < set(choose_images(100, 20)) and len(set(choose_images(100, 100))) == 100
    assert (np.diff(choose_images(100, 20)) > 0).all()
    with pytest.raises(UserError, match="101 wanted, but the search split has 100"):
        choose_images(100, 101)


def test_parts_of_the_wrong_kind_are_refused(space: Space, digits: Digits) -> None:
    pixels, labels, _ = digits
    with pytest.raises(UserError, match="images must be uint8"):
        from_tensors(space, build_supernet(space), pixels.float(), labels)
    with pytest.raises(UserError, match=r"labels must be int64 \[40\]"):
        from_tensors(space, build_supernet(space), pixels, labels[:7])


def test_images_without_room_on_a_gpu_stay_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.zeros(2, 1, 8, 8, dtype=torch.uint8)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 5 * 64 - 1, 10**9))  # half of it is too little
    assert all(placed is part for placed, part in zip(placed_images(parts, torch.device("cuda")), parts, strict=True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 5 * 64, 10**9))
    moved: list[object] = []

    def move(tensor: Tensor, device: object) -> Tensor:
        moved.append(device)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", move)
    placed_images(parts, torch.device("cuda"))
    assert moved == [torch.device("cuda")] * 2
