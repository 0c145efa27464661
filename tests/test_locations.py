"""No credential of a location is printed or stored: every command is run with poisoned URIs in all of its arguments."""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
import yaml

from raynas.cluster.connection import ray_cluster
from raynas.cluster.submission import submit
from raynas.commands.main import main, make_parser
from raynas.commands.parser import Parser
from raynas.data.config import DataConfig
from raynas.data.load import load_data
from raynas.errors import UserError
from raynas.locations import hide_secrets, refuse_credentials, without_credentials
from raynas.phases.rank import read_truth
from raynas.presets.preset import load_preset, override
from raynas.results import RunDir
from tests.small_run import PRESET, small_run

SECRETS = ("SECRET", "HID", "KEY")

POISONED = [
    "s3://KEY:SECRET@bucket/x",
    "s3://KEY:HID/SECRET@bucket/x",
    "s3://KEY:SECRET%zz@bucket/x",
    "s3://KEY:HIDDEN SECRET@bucket/x",
    "s3://KEY:HIDDEN@SECRET@bucket/x",
    "s3://KEY%3ASECRET@bucket/x",
    "s3://KEY:SECRET%40bucket/x",
    "s3://KEY:SECRET/bucket/x",
    "s3://SECRET@bucket/x",
    "s3://[KEY:SECRET@bad/x",
    "s3://bucket/x?secret_key=SECRET",
    "s3://bucket/x?SECRET",
    "s3://bucket/x?region=eu&access_key=KEY&secret_key=HIDDEN%20SECRET",
    "s3://bucket/x?endpoint_override=http://KEY:SECRET@host",
    "S3:/KEY:SECRET@bucket/x",
    "s3:KEY:SECRET@bucket/x",
    "s3//KEY:SECRET@bucket/x",
    "KEY:SECRET@bucket/x",
    "//KEY:SECRET@bucket/x",
    " s3://KEY:SECRET@bucket/x",
    "'s3://KEY:SECRET@bucket/x'",
    "s4://KEY:SECRET@bucket/x",
    "abfs://account:SECRET@container/x",
    "abfs://container@account.dfs.core.windows.net/x?client_secret=SECRET",
    "hdfs://user:SECRET@host:8020/x",
    "https://user:SECRET@host/x",
    "https://bucket.s3.amazonaws.com/x?X-Amz-Signature=SECRET",
    "file://user:SECRET@host/x",
]

HARMLESS = [
    "runs/first",
    "/data/2024:01/x",
    "/data/ann@lab/x",
    "s3://bucket/x?region=eu-west-1&scheme=http&endpoint_override=127.0.0.1:9000",
    "s3://bucket/versions@2/x",
    "gs://anonymous@bucket/x",
    "abfs://container@account.dfs.core.windows.net/x",
    "hdfs://user@host:8020/x",
    "my.module:function",
    "data={name: s3://bucket/x, seed: 3}",
    "http://127.0.0.1:8265",
]


def _commands(parser: Parser, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list]]:
    """Every command with its arguments, found in the parser."""
    parser.load()
    own = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from _commands(inner, (*before, name))
        elif not isinstance(action, argparse._HelpAction):
            own.append(action)
    if parser.get_default("action") is not None:
        yield before, own


def _poisoned() -> Iterator[list[str]]:
    """Command lines, each with one argument that is to be replaced by a location: `{}`."""
    for name, actions in _commands(make_parser()):
        needed = [action for action in actions if action.required or not action.option_strings]
        for action in actions:
            if action.nargs == 0 or (action.option_strings and isinstance(action, argparse.BooleanOptionalAction)):
                continue
            words = list(name)
            for each in dict.fromkeys([*needed, action]):
                value = "{}" if each is action else "x"
                words += [*each.option_strings[-1:], value]
            yield words
        yield [*name, *("x" for action in needed if not action.option_strings), "--set", "data.name={}"]
        yield [*name, *("x" for action in needed if not action.option_strings), "--one-more", "{}"]


def test_every_command_refuses_credentials_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = list(_poisoned())
    assert {"train", "report", "rank", "import", "export", "cost"} <= {words[0] for words in lines}
    assert ["rank", "x", "--truth", "{}"] in lines and ["bench", "forward", "{}"] in lines
    for number, words in enumerate(lines):
        for poison in (POISONED * 2)[number % len(POISONED) :][:3]:  # each in many places
            with contextlib.suppress(SystemExit):
                assert main([word.replace("{}", poison) for word in words]) == 2, words
            out, err = capfd.readouterr()
            assert not out and err.count("\n") == 1 and err.startswith("raynas: argument "), (words, poison)
            assert not [secret for secret in SECRETS if secret in err], (words, poison, err)
            assert "AWS_*" in err
    assert not list(tmp_path.iterdir())  # nothing was stored either


@pytest.mark.parametrize("poison", POISONED)
def test_the_library_refuses_them_and_says_nothing_of_them(poison: str, tmp_path: Path) -> None:
    preset = tmp_path / "preset.yaml"
    preset.write_text(yaml.safe_dump({"space": "digits/vit", "data": {"name": poison}}, width=10_000))
    calls = [
        lambda: RunDir(poison, create=True),
        lambda: DataConfig(name=poison),
        lambda: load_data(poison),
        lambda: override(PRESET, {"data": {"name": poison}}),
        lambda: override(PRESET, {"data.name": poison}),
        lambda: load_preset(preset),
        lambda: submit(["python", "train.py", "--run", poison], tmp_path),
    ]
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for call in calls:
            with pytest.raises((UserError, pydantic.ValidationError)) as caught:
                call()
            told = "".join(traceback.format_exception_only(caught.value))
            assert not [secret for secret in SECRETS if secret in told], told
            assert "AWS_*" in told
    finally:
        os.chdir(before)
    assert [path.name for path in tmp_path.iterdir()] == ["preset.yaml"]


@pytest.mark.parametrize("location", HARMLESS)
def test_locations_without_credentials_pass(location: str) -> None:
    refuse_credentials(location)
    assert without_credentials({"a": [location]}) == {"a": [location]}
    assert hide_secrets(location) == location.partition("?")[0]


def test_yaml_files_are_refused_by_line_whatever_key_holds_it(tmp_path: Path) -> None:
    file = tmp_path / "preset.yaml"
    for content in (
        "space: digits/vit\ndata: digits\nrecipe:\n  teachers:\n    models: [x, 's3://KEY:SECRET@b/x']\n",
        "space: digits/vit\ndata: digits\nrecipe:\n  epochs: 3\n  's3://KEY:SECRET@b/x': 3\n",
    ):
        file.write_text(content)
        with pytest.raises(UserError, match=r"preset\.yaml:[345].*AWS_\*") as caught:
            load_preset(file)
        assert "SECRET@" not in str(caught.value)


def test_a_local_file_with_such_a_name_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "10:30@lab").mkdir()
    refuse_credentials(str(tmp_path / "10:30@lab"))
    RunDir(tmp_path / "10:30@lab", create=True)


def test_what_an_older_version_stored_is_in_no_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = small_run(tmp_path / "run")
    secret = "s3://KEY:SECRET@bucket/images?region=x"
    preset = yaml.safe_load((tmp_path / "run/preset.yaml").read_text())
    (tmp_path / "run/preset.yaml").write_text(yaml.safe_dump({**preset, "data": {**preset["data"], "name": secret}}))
    (tmp_path / "run/train.yaml").write_text(
        yaml.safe_dump({"settings": {"data": {"name": secret}}, "starts": [{"host": "x", "time": "y"}]})
    )
    (tmp_path / "run/traced.yaml").write_text(yaml.safe_dump({"settings": {"note": f"from {secret}"}, "starts": []}))
    assert main(["report", run.uri]) == 0
    assert "SECRET" not in "".join(capfd.readouterr()) + (tmp_path / "run/report.html").read_text()


@pytest.mark.parametrize("words", [["--bogus"], ["train.py", "--run"]])
def test_the_script_that_submits_refuses_them_too(words: list[str]) -> None:
    script = Path(__file__).parents[1] / "jobs" / "submit.py"
    done = subprocess.run([sys.executable, script, *words, POISONED[1]], capture_output=True, text=True)
    assert done.returncode == 2 and "AWS_*" in done.stderr
    assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]


@pytest.mark.parametrize("address", ["http://KEY:SECRET@127.0.0.1:9", "KEY:SECRET@127.0.0.1:9", "KEY:SE/CRET@host:9"])
def test_addresses_of_ray_are_told_without_credentials(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str, **_: object) -> None:
        raise RuntimeError(f"cannot connect to {address}: nobody there")

    monkeypatch.setattr("ray.init", refuse)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.shutdown", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", address)
    for call in (lambda: ray_cluster().__enter__(), lambda: submit(["python", "train.py"], tmp_path)):
        with pytest.raises(UserError) as caught:
            call()
        told = "".join(traceback.format_exception(caught.value))
        assert not [secret for secret in (*SECRETS, "CRET") if secret in told], told
    script = Path(__file__).parents[1] / "jobs" / "submit.py"
    done = subprocess.run([sys.executable, script, "train.py"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("submit: ") and done.stderr.count("\n") == 1
    assert "KEY" not in done.stderr and "CRET" not in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "no cluster at RAY_ADDRESS=KEY:SECRET@host:1 (refused): start it",
            "no cluster at RAY_ADDRESS=...@host:1 (refused): start it",
        ),
        ("KEY:SEC@RET@host", "...@host"),
        ("//KEY:SECRET@host", "...@host"),
        ("from 'KEY%3ASECRET@host'", "from '...@host'"),
        ("KEY:SECRET@host and http://KEY:SECRET@host", "...@host and http://..."),
    ],
)
def test_credentials_are_hidden_in_texts_without_a_scheme(text: str, told: str) -> None:
    assert hide_secrets(text) == told


def test_a_truth_table_by_uri_is_told_without_its_options() -> None:
    with pytest.raises(UserError) as caught:
        read_truth("s3://KEY:SECRET@b/x")
    assert "SECRET" not in str(caught.value)
