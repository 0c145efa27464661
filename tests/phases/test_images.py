"""What is said and refused of images before anything is trained on them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import raynas
from raynas import Resources, train
from raynas.commands.main import main
from raynas.data import look as seen
from raynas.data.config import DataConfig
from raynas.errors import UserError
from raynas.phases import look_elsewhere
from raynas.phases.images import check_data, check_images, check_made_for, describe_jitter, describe_reading
from raynas.phases.inputs import load_inputs, resolve_data
from raynas.phases.preflight import preflight
from raynas.presets.preset import Preset, load_preset, override
from raynas.space import load_space
from tests.data.pictures import write_classes


@pytest.fixture
def colours(tmp_path: Path) -> str:
    """RGB images of 16 x 16 in numbered class folders."""
    write_classes(tmp_path / "colours", {"1": 12, "10": 12, "2": 12}, size=(16, 16))
    return str(tmp_path / "colours")


def on(name: str, **data: object) -> Preset:
    return override(load_preset("digits"), {"data": {"name": name, **data}})


def test_other_data_than_the_presets_must_not_lose_colour_or_size_unsaid(colours: str, tmp_path: Path) -> None:
    digits = load_preset("digits")
    with pytest.raises(UserError) as refused:
        check_made_for(digits, on(colours))
    assert "16 x 16 RGB" in str(refused.value) and "8 x 8 grey" in str(refused.value)
    assert "--set data.size=own --set data.channels=own" in str(refused.value)
    with pytest.raises(UserError, match=r"--set data.channels=own; to read"):
        check_made_for(digits, on(colours, size=8))
    for said in ({"size": 8, "channels": 1}, {"size": "own", "channels": "own"}):
        check_made_for(digits, on(colours, **said))
    check_made_for(override(digits, {"data": colours}), on(colours))  # the preset's own data
    check_made_for(digits, on("mnist5k"))  # whose size the space follows
    write_classes(tmp_path / "grey", {"a": 4, "b": 4}, size=(8, 8), mode="L")
    check_made_for(digits, on(str(tmp_path / "grey")))
    with pytest.raises(UserError, match="16 x 16 RGB"):
        train("digits", data=colours, run_dir=tmp_path / "run")


def test_the_space_follows_the_images_and_how_they_are_read_is_said(colours: str) -> None:
    follows = on(colours, size="own", channels="own")
    space, data = load_inputs(follows)
    assert (space.input_size, space.channels) == ((16, 16), 3) == (data.size, data.channels)
    lines = describe_reading(follows, data)
    assert lines[0] == "the images are read as they are: 16 x 16 RGB"
    assert "plain order (1, 10, 2)" in lines[1] and "data.class_order=natural" in lines[1]
    smaller = on(colours, class_order="natural")
    said = describe_reading(smaller, load_inputs(smaller)[1])
    assert said == ["the images, 16 x 16 RGB, are read as 8 x 8 grey: digits/vit is of such images"]


def test_all_that_cannot_be_read_is_listed_before_training(colours: str, tmp_path: Path) -> None:
    for name in ("1/003.png", "2/030.png"):
        (Path(colours) / name).write_bytes(b"no image")
    said: list[str] = []
    preset = on(colours, size=8, channels=1)
    with pytest.raises(UserError, match=r"^2 of 36 images cannot be read .*data.skip=unreadable$"):
        train(preset, run_dir=tmp_path / "run", progress=said.append)
    assert said == [
        "unreadable: 2 image(s) cannot be read as an image: not an image, or a damaged one: 1/003.png, 2/030.png"
    ]
    assert not (tmp_path / "run").exists()
    listed = list(said)
    skipping = override(preset, {"data.skip": "unreadable"})
    said.clear()
    check_images(skipping, Resources(), said.append)
    assert said == ["skipped" + line.removeprefix("unreadable") for line in listed]
    assert resolve_data(skipping, load_space("digits/vit")).skip == ("1/003.png", "2/030.png")


def test_images_that_are_all_black_are_refused(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for k in range(4):
            Image.new("RGBA", (8, 8), (0, 0, 0, 30 * k)).save(tmp_path / name / f"{k}.png")
    with pytest.raises(UserError, match="one colour all over"):
        check_images(on(str(tmp_path)), Resources(), lambda line: None)


def test_the_command_says_what_there_is(colours: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--data", colours]) == 0
    said = capsys.readouterr().out
    for part in (
        "36",
        "16 x 16 36",
        "RGB 36",
        "train 22, search 6, test 8",
        "3: 1 12, 10 12, 2 12",
        "data.class_order",
    ):
        assert part in said
    assert main(["check", "--data", colours, "--set", "data.class_order=natural"]) == 0
    assert "3: 1 12, 2 12, 10 12" in capsys.readouterr().out
    (Path(colours) / "1" / "003.png").write_bytes(b"")
    assert main(["check", "--data", colours]) == 2
    told = capsys.readouterr()
    assert told.out.count("unreadable: ") == 1 and ": 1/003.png\n" in told.out and told.err.count("\n") == 1


def test_what_cannot_be_read_is_a_line_for_each_reason(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 30, "b": 30}, size=(16, 16))
    paths = sorted(path for path in tmp_path.glob("*/*"))
    for path in paths[:25]:
        path.write_bytes(b"no image")
    for number, path in enumerate(paths[30:33]):  # cut at different bytes, which the reason names
        path.write_bytes(path.read_bytes()[: -40 - number])
    said: list[str] = []
    with pytest.raises(UserError, match=r"^28 of 60 images"):
        check_images(on(str(tmp_path), size=8, channels=1), Resources(), said.append)
    assert [line.split(" cannot")[0] for line in said] == ["unreadable: 25 image(s)", "unreadable: 3 image(s)"]
    assert said[0].endswith(", and 5 more") and said[0].count(".png") == 20 and said[1].count(".png") == 3


def test_the_embedded_data_can_be_looked_at() -> None:
    said: list[str] = []
    check_data(DataConfig(name="digits"), None, Resources(), said.append)
    assert "images    1,797" in said and "sizes     8 x 8 1,797" in said


def test_a_check_finds_limits_that_no_arch_for_such_images_meets(colours: str) -> None:
    follow = {"data.size": "own", "data.channels": "own"}
    raynas.check("digits", colours, follow | {"search.constraints": {}})
    with pytest.raises(UserError, match=r"^search: no arch has macs in"):
        raynas.check("digits", colours, follow | {"search.constraints.macs": [None, 1e6]})


def test_a_check_tells_all_mistakes_at_once(colours: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the images need, rungs of more images than there are, a wrong recipe, and a limit that no arch meets."""
    wrong = ["retrain.recipe.opt_args.tempo=3", "search.rungs=[{images: 5000, keep: 0.5}]"]
    words = [word for one in wrong for word in ("--set", one)]
    assert main(["check", "digits", "--data", colours, *words]) == 2
    told = capsys.readouterr()
    first, *others = told.err.splitlines()
    assert "to follow the images give --set data.size=own --set data.channels=own" in first
    for said in ("rungs: 5,000 images", "'tempo'", "search: no arch has macs in [.., 2000000]"):
        assert len([line for line in others if said in line]) == 1, (said, others)
    assert "the rest is checked with data.size=own data.channels=own" in told.out and "the search split has" in told.out


def test_colour_jitter_that_does_less_than_it_seems_is_said() -> None:
    def lines(channels: int, **augment: object) -> list[str]:
        return describe_jitter([override(load_preset("digits"), {"recipe.augment": augment}).recipe], channels)

    policy = {"color_jitter": 0.4, "auto_augment": "rand-m9-mstd0.5-inc1"}
    assert lines(3, color_jitter=0.4) == lines(1) == lines(3, **policy, force_color_jitter=True) == []
    assert lines(1, color_jitter=0.4) == [
        "the images are grey: color_jitter changes their brightness and contrast alone"
    ]
    (line,) = lines(1, **policy)
    assert line.startswith("color_jitter has no effect beside auto_augment") and "force_color_jitter=true" in line


class SentAway(Exception):
    """In place of what tasks of a cluster see."""


PARAMS = {"recipe.lr": {"low": 1e-4, "high": 1e-2}}
LOOKS: dict[str, Callable[[Preset, Path], Any]] = {
    "train": lambda preset, run: train(preset, run),
    "check": lambda preset, run: raynas.check(preset),
    "tune": lambda preset, run: raynas.tune(preset, run, params=PARAMS),
    "ablate": lambda preset, run: raynas.ablate({"preset": "digits", "rows": {"as it is": {}}}, run, data=preset.data),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_head_reads_no_large_dataset(
    look: str, colours: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tasks(*_: object) -> None:
        raise SentAway

    monkeypatch.setattr(seen, "_KNOWN", {})
    monkeypatch.setattr(look_elsewhere, "HERE_UP_TO", 5)
    monkeypatch.setattr(look_elsewhere, "on_cluster", lambda: True)
    monkeypatch.setattr(look_elsewhere, "ray_cluster", nullcontext)
    monkeypatch.setattr(look_elsewhere, "_by_tasks", tasks)
    with pytest.raises(SentAway):
        LOOKS[look](on(colours, size="own", channels="own"), tmp_path / "run")


def test_a_search_split_of_few_images_is_said(tmp_path: Path) -> None:
    write_classes(tmp_path, {"a": 60, "b": 60}, size=(8, 8), mode="L")
    lines: list[str] = []
    preset = override(load_preset("digits"), {"data.name": str(tmp_path), "data.search_fraction": 0.1})
    preflight(preset, raynas.Resources(workers=0, replicas=0), progress=lines.append)
    count = len(load_inputs(preset)[1].search)
    assert count == 10 and round(100 * 0.3 / 10**0.5, 1) == 9.5
    said = "the search split has 10 images, so that an accuracy of 90 % has a standard error of 9.5 points"
    assert [line for line in lines if line.startswith(said)]
