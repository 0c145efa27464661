"""The command: what a user gets wrong is one line and exit code 2; help is for newcomers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from raynas.commands.main import COMMANDS, main
from raynas.costs import cost
from raynas.runs.networks import arch_text
from raynas.runs.run import Run
from raynas.space import Space, load_space

DEMO = Path(__file__).parents[1] / "golden/runs/demo"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run directory in which nothing has been trained."""
    return Run(tmp_path / "run", create=True)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Files that are wrong in different ways."""
    (tmp_path / "typo.yaml").write_text("space: digits/vit\ndata: digits\nrecipe: {epoch: 3, batch_size: 8, lr: 0.1}\n")
    (tmp_path / "text.yaml").write_text("space: [digits\n")
    blocks = "blocks: {heads: [2, 2, 2], mlp_ratio: [1.0, 1.0, 1.0]}"
    (tmp_path / "arch.yaml").write_text(f"space: digits/vit\narch: {{patch_size: 2, width: 33, depth: 3, {blocks}}}\n")
    (tmp_path / "long.yaml").write_text(f"space: {'x' * 5000}\narch: {{width: 32}}\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    return tmp_path


MISTAKES = {
    "no verb": ([], ["required", "COMMAND"]),
    "wrong verb": (["serach", "x"], ["serach", "search"]),
    "unknown option": (["report", "{run}", "--fast"], ["--fast", "raynas"]),
    "missing argument": (["search"], ["run", "raynas search --help"]),
    "no such run": (["report", "{files}/nowhere"], ["nowhere", "not a run directory"]),
    "not a run": (["search", "{files}/empty"], ["empty", "not a run directory"]),
    "nothing trained, search": (["search", "{run}"], ["preset.yaml", "train"]),
    "nothing trained, retrain": (["retrain", "{run}"], ["preset.yaml", "train"]),
    "nothing found, evaluate": (["evaluate", "{run}"], ["best/arch.yaml", "search"]),
    "nothing found, export": (["export", "{run}"], ["best/arch.yaml", "search"]),
    "no such preset": (["train", "digitz", "--run", "{files}/new"], ["digitz", "digits"]),
    "key misspelt": (["train", "{files}/typo.yaml", "--run", "{files}/new"], ["typo.yaml:3", "epoch", "epochs"]),
    "not YAML": (["train", "{files}/text.yaml", "--run", "{files}/new"], ["text.yaml:", "YAML"]),
    "not an assignment": (["search", "{run}", "--set", "epochs"], ["epochs", "KEY=VALUE"]),
    "unknown data": (
        ["train", "{preset}", "--run", "{files}/new", "--data", "{files}/absent"],
        ["absent"],
    ),
    "nothing to check": (["check"], ["--data"]),
    "no value of data": (["check", "--data", "digits", "--set", "recipe.epochs=3"], ["recipe.epochs", "data.size=32"]),
    "black and white alike": (["check", "--data", "digits", "--set", "data.pixel_range=[3, 3]"], ["the same value"]),
    "data of the system": (["check", "--data", "/proc"], ["/proc", "operating system"]),
    "bad number": (["train", "{preset}", "--run", "{files}/new", "--workers", "-1"], ["--workers", "at least 0"]),
    "unknown override": (
        ["train", "{preset}", "--run", "{files}/new", "--set", "recipe.epoch=3"],
        ["recipe.epoch", "epochs"],
    ),
    "a number of archs that is none": (
        ["train", "{preset}", "--run", "{files}/new", "--set", "plan.sampler={{name: sandwich, random: two}}"],
        ["random must be a whole number from 0", "'two'"],
    ),
    "unknown space": (["cost", "autoformer/tinny"], ["tinny", "autoformer/tiny"]),
    "unknown system": (
        ["import", "nasnet", "{files}/notes.txt", "--run", "{files}/new", "--data", "digits"],
        ["nasnet", "autoformer"],
    ),
    "no checkpoint": (
        ["import", "autoformer", "{files}/absent.pth", "--run", "{files}/new", "--data", "digits"],
        ["absent.pth"],
    ),
    "not a checkpoint": (
        ["import", "autoformer", "{files}/notes.txt", "--run", "{files}/new", "--data", "digits"],
        ["notes.txt"],
    ),
    "an empty argument": (["train", "{preset}", "--run", ""], ["empty", "--run"]),
    "an empty argument beside its option": (
        ["train", "{preset}", "--run", "{files}/new", "--data="],
        ["empty", "--data"],
    ),
    "too long for a file": (["train", "x" * 5000, "--run", "{files}/new"], ["no preset"]),
    "odd digits": (["train", "{preset}", "--run", "{files}/new", "--workers", "²"], ["--workers", "at least 0"]),
    "more than a day of trainings": (["retrain", "{run}", "--seeds", "1001"], ["--seeds", "at most 1,000"]),
    "a number of too many digits": (["search", "{run}", "--images", "9" * 5000], ["--images", "at most 1,000,000"]),
    "a NUL in a name": (["report", "{run}\0"], ["no text", "NUL"]),
    "a name that is no UTF-8": (["report", "{run}\udcff"], ["no text", "UTF-8"]),
    "a URI with an open bracket": (
        ["report", "s3://KEY:SECRET@[bad/x"],
        ["argument after 'report': a location is printed and stored and must hold no credentials"],
    ),
    "credentials in an option": (["train", "digits", "--run", "s3://K:S@b/x"], ["argument --run: a location"]),
    "credentials after an equals sign": (["train", "digits", "--run=s3://K:S@b/x"], ["argument --run: a location"]),
    "a seed of too many digits": (["export", "{run}", "--seed", "9" * 5000], ["--seed", "at most 9,223,372"]),
    "a key of thousands of parts": (
        ["train", "{preset}", "--run", "{files}/new", "--set", ".".join("a" * 3000) + "=1"],
        ["no preset has a key"],
    ),
    "a seed that sklearn cannot take": (
        ["train", "{preset}", "--run", "{files}/new", "--set", "data.seed=9223372036854775807"],
        ["data.seed", "4294967296"],
    ),
    "a wrong arch": (["cost", "{files}/arch.yaml"], ["arch.yaml:2", "width", "32"]),
    "an arch of a space with an impossible name": (["cost", "{files}/long.yaml"], ["no space"]),
    "no such device": (["bench", "latency", "digits/deit", "--device", "tpu"], ["device", "cuda", "tpu"]),
    "no such GPU": (["bench", "latency", "digits/deit", "--device", "cuda:77"], ["cuda:77", "GPUs"]),
    "half a resource": (["bench", "latency", "digits/deit", "--resource", "GPU"], ["--resource GPU", "NAME=AMOUNT"]),
    "no time to time": (["bench", "latency", "digits/deit", "--seconds", "0"], ["--seconds", "above 0"]),
    "a run in a run": (["train", "{preset}", "--run", "{run}/tables/scores"], ["run/tables/scores lies in", "{run}"]),
    "a run in a run, imported": (
        ["import", "autoformer", "{files}/notes.txt", "--run", "{run}/tables", "--data", "digits"],
        ["run/tables lies in the run directory"],
    ),
    "a demo in a run": (["demo", "--run", "{run}/tables"], ["run/tables lies in the run directory"]),
    "too many draws": (["bench", "window", "digits/vit", "--draws", "1" + "0" * 20], ["at most 1,000,000"]),
    "cost of a preset": (["cost", "digits/preset"], ["this file is a preset", "'digits/vit'"]),
    "no such network": (["bench", "forward", "{files}/empty"], ["empty", "arch.yaml"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    mistake: str, run: Run, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, words = MISTAKES[mistake]
    preset = files / "good.yaml"
    preset.write_text("space: digits/vit\ndata: digits\nrecipe: {epochs: 6, batch_size: 8, lr: 0.1}\n")
    given = [text.format(run=run.uri, files=files, preset=preset) for text in arguments]
    code = main(given)
    out, err = capsys.readouterr()
    assert code == 2, err
    assert err.startswith("raynas: ") and err.count("\n") == 1, err
    assert "Traceback" not in out
    for word in words:
        assert word.format(run=run.uri) in err


def test_wrong_arch_in_a_trained_run(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_yaml("space.yaml", load_space("digits/vit").to_dict())
    for arch, words in {
        "0123456789ab": "was not scored",
        "digits/dei": "digits/deit",
        "reference": "reference/arch.yaml",
    }.items():
        assert main(["evaluate", run.uri, "--arch", arch]) == 2
        assert words in capsys.readouterr().err


def test_a_truncated_space_is_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_yaml("space.yaml", load_space("digits/vit").to_dict())
    whole = run.read_bytes("space.yaml")
    run.write_bytes("space.yaml", whole[: whole.index(b"dimensions")])
    assert main(["bench", "latency", "digits/vit", "--run", run.uri]) == 2
    assert f"{run.name}/space.yaml:1: dimensions: is missing" in capsys.readouterr().err


def test_a_warning_names_the_command_as_errors_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = Run(shutil.copytree(DEMO, tmp_path / "demo"))
    (file,) = damaged.list("tables/probes")
    damaged.write_bytes(f"tables/probes/{file}", b"PAR1")
    assert main(["watch", str(tmp_path / "demo"), "--once"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("raynas: ") and f"{file} is not a whole Parquet file and is ignored" in line


def test_our_own_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(space: Space) -> str:
        raise AssertionError("a bug")

    monkeypatch.setattr("raynas.commands.cost.space_table", broken)
    with pytest.raises(AssertionError):
        main(["cost", "digits/vit"])


@pytest.mark.slow
def test_a_training_that_is_told_to_end_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While Ray, which has a handler and a stack of its own to print, starts the workers."""
    monkeypatch.delenv("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", raising=False)  # of a command that this process ran
    arguments = ["train", "digits", "--workers", "1", "--run", f"{tmp_path}/run"]
    command = subprocess.Popen(
        [sys.executable, "-u", "-m", "raynas.commands.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert any("starting 1 Ray Train worker(s)" in line for line in command.stdout)
    command.terminate()
    _, said = command.communicate(timeout=60)
    assert command.returncode == 143, said
    assert said.strip() == f"raynas: stopped. To go on where it was: raynas {' '.join(arguments)}"


@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_reader_that_has_enough_ends_a_command_quietly(buffered: str) -> None:
    reader, output = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    command = [sys.executable, "-m", "raynas", "cost", "digits/vit"]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, env=environment, timeout=60)
    os.close(output)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupt_says_how_to_go_on(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:  # as a shell leaves SIGINT to its background jobs
        signal.signal(number, signal.default_int_handler)
    before = signal.getsignal(number)
    for command in ("export", "watch", "bench.archs", "bench.segment"):
        monkeypatch.setattr(f"raynas.commands.{command}.run", lambda options: signal.raise_signal(number))
    assert main(["export", "my run"]) == code
    assert capsys.readouterr().err.strip() == "raynas: stopped. To go on where it was: raynas export 'my run'"
    for arguments in (["watch", "my run"], ["bench", "archs"]):  # nothing is stored that could be gone on with
        assert main(arguments) == code
        assert capsys.readouterr().err.strip() == "raynas: stopped"
    assert main(["bench", "segment", "a", "--to", "b"]) == code
    assert "To go on where it was: raynas bench segment a --to b" in capsys.readouterr().err
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("verb", [[], *([verb] for verb in COMMANDS), ["bench", "forward"], ["bench", "score"]])
def test_help(verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*verb, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: raynas")
    if not verb:
        assert all(f"    {name}" in text for name in COMMANDS)


def test_cost_of_a_space_and_an_arch(capsys: pytest.CaptureFixture[str], run: Run) -> None:
    space = load_space("digits/vit")
    assert main(["cost", "digits/vit"]) == 0
    shown = capsys.readouterr().out
    extremes = cost(space, [space.smallest(), space.largest()])
    line = next(line for line in shown.splitlines() if line.startswith("MACs "))
    assert [int(cell.replace(",", "")) for cell in line.split()[1:]] == extremes["macs"].tolist()
    run.write_bytes("arch.yaml", arch_text(space.largest()).encode())
    assert main(["cost", run.local_or_uri("arch.yaml")]) == 0
    total = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("total"))
    numbers = [int(cell.replace(",", "")) for cell in total.split()[1:]]
    assert numbers == [int(extremes[name][1]) for name in ("macs", "paper_macs", "params")]


def test_bench_times_networks_in_turns(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    space = load_space("digits/vit")
    run.write_bytes("small.yaml", arch_text(space.smallest()).encode())
    run.write_bytes("large.yaml", arch_text(space.largest()).encode())
    names = [run.local_or_uri(name) for name in ("small.yaml", "large.yaml")]
    assert main(["bench", "forward", *names, "--rounds", "5", "--run", run.uri]) == 0
    lines = capsys.readouterr().out.splitlines()
    macs = cost(space, [space.smallest(), space.largest()])["macs"]
    assert len(lines) == 5 and all(any(f"{count:,} MACs" in line for line in lines) for count in macs.tolist())
    rows = run.store.read("timings").to_pylist()
    assert [row["what"] for row in rows] == [f"forward pass of {name}" for name in names]
    assert all(row["seconds"] > 0 for row in rows)


def test_bench_times_subnets_alone_and_once(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.write_yaml("space.yaml", load_space("digits/vit").to_dict())
    command = ["bench", "latency", "digits/deit", "--batch-size", "3", "--seconds", "0.01", "--run", run.uri]
    assert main(command) == 0
    shown = capsys.readouterr().out.splitlines()[-3:]
    assert main(command) == 0 and capsys.readouterr().out.splitlines()[-3:] == shown
    (row,) = run.store.read("latencies").to_pylist()
    assert row["device"] in shown[0] and f"{row['ms']:.3f}" in shown[2] and row["batch_size"] == 3


def test_bench_times_the_ends_of_a_space(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "latency", "digits/vit", "digits/deit", "--seconds", "0.01"]) == 0
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.partition("  ")[0] for line in lines] == ["digits/vit, smallest", "digits/vit, largest", "digits/deit"]
    assert "371,200" in lines[0] and "3,671,296" in lines[1]
    run.write_yaml("space.yaml", load_space("digits/vit").with_input(size=16).to_dict())
    assert main(["bench", "latency", "digits/vit", "--seconds", "0.01", "--run", run.uri]) == 0
    assert "2,017,792" in capsys.readouterr().out.splitlines()[-2]  # for the run's images


def test_report_of_an_empty_run_prints_its_path(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", run.uri]) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path.read_text().startswith("<!doctype html>")


HEAVY = "{'torch', 'ray', 'pandas', 'matplotlib', 'timm', 'pyarrow'}"


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"raynas {metadata.version('raynas')}\n"


def test_help_imports_no_command_and_nothing_heavy() -> None:
    code = "import sys, raynas.commands.main as cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += f"print(({HEAVY} | {{'pydantic', 'yaml'}}) & set(sys.modules))\n"
    code += "print(*sorted(name for name in sys.modules if name.startswith('raynas.commands.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-2:] == ["set()", "raynas.commands.main raynas.commands.parser"]


def test_help_and_usage_errors_of_every_command_load_nothing_heavy() -> None:
    code = "import sys, raynas.commands.main as cli\n"
    code += (
        f"for name in {[*COMMANDS]}:\n for words in (['--help'], ['--nonsense']):\n  try: cli.main([name, *words])\n"
    )
    code += f"  except SystemExit: pass\n  assert not {HEAVY} & set(sys.modules), name"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("raynas: ") == len(COMMANDS)
