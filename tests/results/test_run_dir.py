from __future__ import annotations

import errno
import os
import pickle
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raynas.config import Config
from raynas.errors import RunDirError
from raynas.results import RunDir


class _Rate(Config):
    rate: float = 0.1


class _Settings(Config):
    epochs: int = 3
    sizes: tuple[int, int] = (8, 8)
    nested: _Rate = _Rate()


@pytest.fixture(params=["path", "file URI", "s3"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        server: Callable[[str], str] = request.getfixturevalue("s3_server")
        return server(f"run-dir/{tmp_path.name}")
    return str(tmp_path / "run") if request.param == "path" else (tmp_path / "run").as_uri()


def test_files_round_trip_on_every_filesystem(uri: str) -> None:
    with pytest.raises(RunDirError, match=r"not a run directory: it has no raynas\.yaml"):
        RunDir(uri)
    run = RunDir(uri, create=True)
    run.write_bytes("deep/down/blob.bin", b"\x00\x01")
    run.write_yaml("preset.yaml", {"b": [1, 2], "a": _Settings()})
    run.write_yaml("preset.yaml", {"b": [1, 3], "a": _Settings()})  # whole files are replaced
    run.write_json("supernet.json", {"fingerprint": "ab"})
    again = pickle.loads(pickle.dumps(RunDir(uri)))
    assert again.read_bytes("deep/down/blob.bin") == b"\x00\x01"
    assert again.read_yaml("preset.yaml")["b"] == [1, 3]
    assert again.read_yaml("preset.yaml")["a"] == {"epochs": 3, "sizes": [8, 8], "nested": {"rate": 0.1}}
    assert again.read_json("supernet.json") == {"fingerprint": "ab"}
    assert again.list() == ["deep", "preset.yaml", "raynas.yaml", "supernet.json"]
    assert again.exists("deep") and again.exists("deep/down/blob.bin") and not again.exists("else")
    assert again.list("else") == []
    with pytest.raises(RunDirError, match="has no else"):
        again.read_bytes("else")
    assert RunDir(again.local_or_uri(""), create=False).read_json("supernet.json")
    sub = RunDir(again.local_or_uri("networks/x"), create=True)
    sub.write_bytes("y", b"1")
    assert again.read_bytes("networks/x/y") == b"1"


def test_credentials_come_from_the_environment_and_not_from_the_uri(s3_server: Callable[[str], str]) -> None:
    with pytest.raises(RunDirError, match=r"^s3://raynas/nothing is not a run directory"):
        RunDir(s3_server("nothing"))
    with pytest.raises(RunDirError, match="AWS_ACCESS_KEY_ID") as caught:
        RunDir(s3_server("nothing").replace("s3://", "s3://key:secret@"), create=True)
    assert "secret" not in str(caught.value)
    run = RunDir(s3_server("some"), create=True)
    assert str(run) == "s3://raynas/some"


def test_a_run_that_holds_credentials_of_an_older_version_goes_on_without_them(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", create=True)
    clean = {"data": {"name": "s3://bucket/images?region=x"}, "seed": 0}
    (tmp_path / "run" / "train.yaml").write_text(
        "settings:\n  data: {name: 's3://KEY:SECRET@bucket/images?region=x'}\n  seed: 0\nstarts: []\n"
    )
    assert run.read_yaml("train.yaml")["settings"] == clean
    assert run.begin("train", clean) is True
    assert "SECRET" not in (tmp_path / "run" / "train.yaml").read_text()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s4://bucket/x", r"^s4://\.\.\. cannot be opened: a URI begins with one of file://, s3://"),
        ("s3:/bucket/x", r"^s3://\.\.\. cannot be opened: a URI begins with"),
        ("s3:bucket/x", r"^s3://\.\.\. cannot be opened: a URI begins with"),
        ("s3://bucket/a b", r"^s3://\.\.\. cannot be opened: it is not a URI that pyarrow reads"),
        ("s3://bucket/x%zz", r"^s3://\.\.\. cannot be opened: it is not a URI that pyarrow reads"),
        ("s3://[bad/x", r"^s3://\.\.\. cannot be opened"),
        ("s3://bucket/a#b", "write # as %23"),
        ("s3://bucket/x?nonsense=1", "nor options that raynas does not know"),
        ("a\0b", "NUL"),
    ],
)
def test_a_wrong_uri_is_one_clear_line(uri: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunDirError, match=said) as caught:
        RunDir(uri, create=True)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())  # no folder of that name


def test_begin_records_resumes_and_refuses(tmp_path: Path) -> None:
    run = RunDir(tmp_path, create=True)
    assert run.begin("train", _Settings()) is False
    assert run.begin("train", {"epochs": 3, "sizes": (8, 8), "nested": {"rate": 0.1}}) is True
    with pytest.raises(
        RunDirError, match=r"train began with other settings: nested\.rate was 0\.1, is 0\.2; give the same"
    ):
        run.begin("train", _Settings(nested=_Rate(rate=0.2)))
    with pytest.raises(RunDirError, match=r"extra is 1, was not given"):
        run.begin("train", {**_Settings().model_dump(), "extra": 1})
    with pytest.raises(RunDirError, match=r"nested was .*, now not given"):
        run.begin("train", {"epochs": 3, "sizes": [8, 8]})
    assert run.begin("search", {"seed": 0}) is False  # another piece of work has settings of its own
    recorded = run.read_yaml("train.yaml")
    assert recorded["settings"]["sizes"] == [8, 8]
    assert len(recorded["starts"]) == 2 and {"time", "host", "torch", "ray", "python"} <= set(recorded["starts"][0])


@pytest.mark.parametrize(
    ("first", "second"),
    [("train", "trials"), ("trials", "train"), ("space_evolution", "import"), ("import", "train")],
)
def test_a_run_is_of_one_kind(tmp_path: Path, first: str, second: str) -> None:
    run = RunDir(tmp_path / "run", create=True)
    run.begin(first, {})
    with pytest.raises(RunDirError, match=rf"holds other work \(its {first}\.yaml\)"):
        run.begin(second, {})
    assert not run.exists(f"{second}.yaml")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "raynas.yaml").write_text("format: 99\n")
    with pytest.raises(RunDirError, match="newer raynas"):
        RunDir(tmp_path)


_FILL = """
import resource, signal, sys
from raynas.errors import RunDirError
from raynas.results import RunDir
run = RunDir(sys.argv[1])
run.store.append("scores", [{"arch": "first"}])
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
for write in (
    lambda: run.store.append("scores", [{"arch": "second", "reason": str(i) * 999} for i in range(999)]),
    lambda: run.write_bytes("file", b"x" * 9999),
):
    try:
        write()
    except RunDirError as error:
        print(error)
"""


def test_a_disk_that_takes_no_more_is_one_clear_error_and_nothing_torn(tmp_path: Path) -> None:
    # The kernel's own refusal in the middle of a write: a file size limit stands for a full disk.
    run = RunDir(tmp_path, create=True)
    run.write_bytes("file", b"old")
    out = subprocess.run([sys.executable, "-c", _FILL, tmp_path], capture_output=True, text=True, check=True).stdout
    assert out.count("cannot be written: " + os.strerror(errno.EFBIG)) == 2 and len(out.splitlines()) == 2
    assert "run the same command again" in out
    assert run.store.read("scores")["arch"].to_pylist() == ["first"]
    assert run.read_bytes("file") == b"old"
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 2000


@pytest.mark.parametrize("content", [b"", b"- 1\n", b"text", b"other: 1\n", b"\xff\xfe\x00"])
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, content: bytes) -> None:
    run = RunDir(tmp_path, create=True)
    run.begin("train", {"seed": 0})
    (tmp_path / "train.yaml").write_bytes(content)
    with pytest.raises(RunDirError, match=r"train\.yaml is damaged"):
        run.begin("train", {"seed": 0})
    (tmp_path / "raynas.yaml").write_bytes(content)
    with pytest.raises(RunDirError, match=r"raynas\.yaml is damaged"):
        RunDir(tmp_path)
