"""A run directory as typed values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from raynas.config import Config
from raynas.errors import RunDirError, UserError
from raynas.runs.run import Run
from raynas.runs.settings import begin, check_settings, is_bound


class _Rate(Config):
    rate: float = 0.1


class _Settings(Config):
    epochs: int = 3
    sizes: tuple[int, int] = (8, 8)
    nested: _Rate = _Rate()


def test_a_run_that_holds_credentials_of_an_older_version_goes_on_without_them(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", create=True)
    clean = {"data": {"name": "s3://bucket/images?region=x"}, "seed": 0}
    (tmp_path / "run" / "train.yaml").write_text(
        "settings:\n  data: {name: 's3://KEY:SECRET@bucket/images?region=x'}\n  seed: 0\nstarts: []\n"
    )
    assert run.read_yaml("train.yaml")["settings"] == clean
    assert begin(run, "train", clean) is True
    assert "SECRET" not in (tmp_path / "run" / "train.yaml").read_text()


def test_begin_records_resumes_and_refuses(tmp_path: Path) -> None:
    run = Run(tmp_path, create=True)
    assert begin(run, "train", _Settings()) is False
    run.write_json("supernet.json", {})
    assert begin(run, "train", {"epochs": 3, "sizes": (8, 8), "nested": {"rate": 0.1}}) is True
    with pytest.raises(
        RunDirError, match=r"train began with other settings: nested\.rate was 0\.1, is 0\.2; give the same"
    ):
        begin(run, "train", _Settings(nested=_Rate(rate=0.2)))
    with pytest.raises(RunDirError, match=r"extra is 1, was not given"):
        begin(run, "train", {**_Settings().model_dump(), "extra": 1})
    with pytest.raises(RunDirError, match=r"nested was .*, now not given"):
        begin(run, "train", {"epochs": 3, "sizes": [8, 8]})
    assert begin(run, "search", {"seed": 0}) is False  # another piece of work has settings of its own
    recorded = run.read_yaml("train.yaml")
    assert recorded["settings"]["sizes"] == [8, 8]
    assert len(recorded["starts"]) == 2 and {"time", "host", "torch", "ray", "python"} <= set(recorded["starts"][0])


LEFT = {
    "train": [
        "supernet.json",
        "supernet.safetensors",
        "tables/training/x.parquet",
        "checkpoints/supernet/checkpoint_1/state.pt",
        "checkpoints/local/1.pt",
    ],
    "import": ["supernet.json"],
    "space_evolution": ["tables/space_scores/x.parquet", "iterations/0/checkpoints/supernet/checkpoint_1/state.pt"],
    "trials": ["iterations/0/supernet.json", "trials/tau=0.2/tables/space_scores/x.parquet"],
    "networks/a-scratch-0/training": [
        "networks/a-scratch-0/model.safetensors",
        "checkpoints/a-scratch-0/checkpoint_1/state.pt",
        "checkpoints/a-scratch-0/local/1.pt",
    ],
}


@pytest.mark.parametrize(
    ("what", "left", "where"),
    [(what, name, "local") for what, names in LEFT.items() for name in names]
    + [(what, names[-1], "s3") for what, names in LEFT.items()],
)
def test_settings_bind_with_the_first_thing_that_depends_on_them(
    tmp_path: Path, what: str, left: str, where: str, request: pytest.FixtureRequest
) -> None:
    uri = tmp_path / "run"
    if where == "s3":
        uri = request.getfixturevalue("s3_server")(f"bind/{tmp_path.name}")
    run = Run(uri, create=True)
    assert begin(run, what, {"lr": 1}) is False
    if what == "train":
        run.write_bytes("checkpoints/supernet/.validate_storage_marker", b"")  # of Ray Train, before any checkpoint
    assert begin(run, what, {"lr": 2}) is False  # the first attempt did nothing: the directory is free
    assert run.read_yaml(f"{what}.yaml")["settings"] == {"lr": 2} and not is_bound(run, what)
    assert begin(run, what, {"lr": 2}) is True
    run.write_bytes(left, b"x")
    assert is_bound(run, what)
    for attempt in (begin, check_settings):
        with pytest.raises(RunDirError, match="began with other settings: lr was 2, is 3"):
            attempt(run, what, {"lr": 3})
    assert begin(run, what, {"lr": 2}) is True
    assert len(run.read_yaml(f"{what}.yaml")["starts"]) == 3


@pytest.mark.parametrize(
    ("first", "second"), [("train", "trials"), ("trials", "train"), ("import", "train"), ("train", "import")]
)
def test_work_that_did_nothing_makes_room_for_another_kind(tmp_path: Path, first: str, second: str) -> None:
    run = Run(tmp_path / "run", create=True)
    begin(run, first, {})
    run.write_yaml("preset.yaml", {"of": first})
    assert begin(run, second, {}) is False
    assert run.list() == sorted(["raynas.yaml", f"{second}.yaml"])


@pytest.mark.parametrize(
    ("first", "second"),
    [("train", "trials"), ("trials", "train"), ("space_evolution", "import"), ("import", "train")],
)
def test_a_run_is_of_one_kind(tmp_path: Path, first: str, second: str) -> None:
    run = Run(tmp_path / "run", create=True)
    begin(run, first, {})
    run.write_bytes(LEFT[first][0], b"")
    with pytest.raises(RunDirError, match=rf"holds other work \(its {first}\.yaml\)"):
        begin(run, second, {})
    assert not run.exists(f"{second}.yaml")


def test_a_lost_file_is_not_taken_for_a_training_that_never_was(tmp_path: Path) -> None:
    run = Run(tmp_path, create=True)
    with pytest.raises(RunDirError, match=r"has no space\.yaml: train a supernet first"):
        _ = run.space
    run.write_bytes("supernet.safetensors", b"")
    with pytest.raises(RunDirError, match=r"has no space\.yaml: it was lost, since a supernet is there: restore it"):
        _ = run.space
    with pytest.raises(RunDirError, match=r"has no preset\.yaml: it was lost, since a supernet is there: restore it"):
        _ = run.preset


@pytest.mark.parametrize("content", [b"", b"- 1\n", b"text", b"other: 1\n", b"\xff\xfe\x00"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path, create=True)
    begin(run, "train", {"seed": 0})
    run.write_json("supernet.json", {})
    (tmp_path / "train.yaml").write_bytes(content)
    with pytest.raises(RunDirError, match=r"train\.yaml is damaged"):
        begin(run, "train", {"seed": 0})
    (tmp_path / "raynas.yaml").write_bytes(content)
    with pytest.raises(RunDirError, match=r"raynas\.yaml is damaged"):
        Run(tmp_path)


@pytest.mark.parametrize("content", [b"null", b"[1]", b"{}", b"text", b"\xff", b"[" * 100_000])
def test_a_damaged_record_is_one_line_that_names_it(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path, create=True)
    (tmp_path / "supernet.json").write_bytes(content)
    with pytest.raises(RunDirError, match=r"supernet\.json(:| is damaged:) [^\n]+$"):
        _ = run.about_supernet


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"data": 5}, "its 'data' is int 5"),
        ({"data": {"name": "digits", "size": "abc"}}, "data.size: expected a number of pixels"),
        ({"calibration": {"images": -1}}, "calibration.images: Input should be greater"),
        ({"calibration": 5}, "calibration: expected a mapping, found int 5"),
        ({"recipe": None}, "its 'recipe' is nothing"),
        ({"recipe": {"augment": {"scale": 3}}}, "recipe.augment.scale: expected a list"),
    ],
)
def test_a_damaged_preset_is_one_line(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    run = Run(tmp_path, create=True)
    run.write_yaml("preset.yaml", {"data": {"name": "digits"}, "recipe": {}, **change})
    with pytest.raises(UserError, match=f"{why}[^\n]*$"):
        run.calibration(cast(Any, run.data_config))


def test_a_record_without_a_key_inside_is_damaged(tmp_path: Path) -> None:
    run = Run(tmp_path, create=True)
    run.write_yaml("tune.yaml", {"settings": {"tune": 5}, "starts": 3})
    key = "settings.tune.objectives"
    for keys, why in ((key, f"it has no {key!r}"), ("starts", "its .starts. is int 3")):
        with pytest.raises(RunDirError, match=rf"tune\.yaml is damaged: {why}"):
            run.read_yaml("tune.yaml", keys)
