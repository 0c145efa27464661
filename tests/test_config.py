"""Configuration files: any nonsense is one line that says where; right ones are validated values."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from raynas.config import Config, validate
from raynas.documents import Document, parse_yaml, read_yaml, write_yaml
from raynas.errors import ConfigError
from raynas.text import shown
from raynas.user_code import load_object


class Inner(Config):
    rate: float = Field(0.1, ge=0)
    kind: Literal["a", "b"] = "a"


class Outer(Config):
    epochs: int
    shuffle: bool = False
    inner: Inner = Inner()
    sizes: list[int] = Field(default_factory=list)
    several: list[Inner] = Field(default_factory=list)
    free: dict[str, Any] = Field(default_factory=dict)
    either: str | Inner = "x"


def read(text: str) -> Outer:
    return validate(Outer, parse_yaml(text, "my.yaml"))


def test_right_values() -> None:
    config = read("epochs: 3\nshuffle: true\ninner: {rate: 1e-5}\nfree: {on: yes}".replace("on: yes", "'on': yes"))
    assert config.epochs == 3 and config.shuffle and config.inner.rate == 1e-5 and config.free == {"on": True}
    with pytest.raises(ValueError, match="frozen"):
        config.epochs = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("epochs:3: null", r"my.yaml:1: .*'epochs:3': write a space after the colon"),
        ("epoch: 3", r"my.yaml:1: epoch: unknown key 'epoch' \(did you mean 'epochs'\?\)"),
        ("shuffle: true", "my.yaml:1: epochs: is missing"),
        ("epochs: 3\ninner:\n  rat: 1", r"my.yaml:3: inner.rat: unknown key 'rat' \(did you mean 'rate'\?\)"),
        ("epochs: 3\nseveral:\n- {rate: 1}\n- {kid: a}", r"my.yaml:4: several.1.kid: unknown key 'kid' .*'kind'"),
        ("epochs: 3\ninner:\n  rate: -1", "my.yaml:3: inner.rate: .* greater than or equal to 0, found -1"),
        ("epochs: 3\ninner:\n  kind: c", "my.yaml:3: inner.kind: Input should be 'a' or 'b', found 'c'"),
        ("epochs: 3\ninner: 3", "my.yaml:2: inner: .* found 3"),
        ("epochs: three", "my.yaml:1: epochs: .* found 'three'"),
        ("epochs: true", "my.yaml:1: epochs: true and false are not numbers"),
        ("epochs: 3\nsizes: [1, true]", "my.yaml:2: sizes: true and false are not numbers"),
        ("epochs: 3\ninner: {rate: true}", "my.yaml:2: inner.rate: true and false are not numbers"),
        ("epochs: 3\ninner: {rate: .nan}", "my.yaml:2: not valid YAML: '.nan' is not a finite number"),
        ("epochs: 3\neither: [3]", r"my.yaml:2: either: .* found \[3\]"),
        ("epochs: null", "my.yaml:1: epochs: .* found nothing"),
        ("- 3", "my.yaml:1: expected a mapping, found a list"),
        ("", "my.yaml: expected a mapping, found nothing"),
        ("text", "my.yaml:1: expected a mapping, found text"),
        ("epochs: 1\nepochs: 2", "my.yaml:2: 'epochs' is given twice"),
        ("epochs: 1\ninner:\n  rate: 1\n  rate: 2", "my.yaml:4: 'rate' is given twice"),
        ("epochs: 1\n1: 2", "my.yaml:2: the key '1' is not text"),
        ("epochs: 1\non: 2", "my.yaml:2: the key 'on' is not text; put it in quotes"),
        ("epochs: 1\nnull: 2", "my.yaml:2: the key 'null' is not text"),
        ("epochs: 1\n? [a, b]\n: 2", "my.yaml:2: a key is a list, not text: give a name$"),
        ("epochs: 1\n? {a: b}\n: 2", "my.yaml:2: a key is a mapping, not text"),
        ("epochs: 1\nfree:\n  <<: &x {a: 1}\n  rate: -.inf", "my.yaml:4: not valid YAML: .* not a finite number"),
        ("free: &b\n  rate: -1\nepochs: 1\ninner:\n  <<: *b\n  kind: a", "my.yaml:2: inner.rate: .* found -1"),
        ('epochs: 1\nfree:\n  a: "b\\0c"', "my.yaml:3: .* holds a character that no name can have"),
        ('epochs: 1\nfree: {a: "\\ud800"}', "my.yaml:2: .* holds a character that no name can have"),
        ("epochs: 1\nfree: {a: 1" + "0" * 30 + "}", "my.yaml:2: not valid YAML: .* too large for a whole number"),
        ("free: " + "[" * 60 + "]" * 60, "my.yaml:1: nested too deeply: more than 40 levels"),
        (
            "a: &a\n  x: 1\n"
            + "".join(
                f"{new}: &{new}\n  <<: [{', '.join([f'*{old}'] * 9)}]\n"
                for old, new in zip("abcdefg", "bcdefgh", strict=True)
            ),
            "more than 100000 values",
        ),
        ("epochs: 1\n\tsizes: [1]", "my.yaml:2: not valid YAML: found character '.t' that cannot start"),
        ("epochs: [1", "my.yaml:1: not valid YAML"),
        ("epochs: 1\n---\nepochs: 2", "my.yaml:2: not valid YAML"),
        ("epochs: \0", "my.yaml: not valid YAML: .*#x0000"),
        ("epochs: 2001-99-99", "my.yaml:1: not valid YAML: '2001-99-99' is no timestamp: month must be in 1..12"),
        ("epochs: !!bool maybe", "my.yaml:1: not valid YAML: 'maybe' is no bool"),
        ("epochs: " + "9" * 5000, "my.yaml:1: not valid YAML: .* too large for a whole number"),
        ("free: &a [*a]", "my.yaml:1: an alias refers to what it stands in"),
        ("epochs: !!python/object/apply:os.system ['true']", "my.yaml:1: not valid YAML: could not determine"),
        ("[" * 700, "my.yaml: nested too deeply"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
            ),
            "more than 100000 values",
        ),
    ],
    ids=lambda value: str(value)[:20].encode("unicode_escape").decode(),
)
def test_a_mistake_is_one_line_that_says_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        read(text)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 700


def test_all_mistakes_are_told_together() -> None:
    """One line for each, but not for what an unknown key explains, and one for a value that is of no allowed type."""
    text = "epoch: 3\nshuffle: 7\ninner:\n  rate: -1\n  kind: c\neither: [3]\nseveral:\n- {rat: 1}\n- {}\n- {kind: d}"
    with pytest.raises(ConfigError) as raised:
        read(text)
    lines = [line.split(": ")[:2] for line in raised.value.lines]
    assert sorted(lines) == [
        ["my.yaml:1", "epoch"],
        ["my.yaml:10", "several.2.kind"],
        ["my.yaml:2", "shuffle"],
        ["my.yaml:4", "inner.rate"],
        ["my.yaml:5", "inner.kind"],
        ["my.yaml:6", "either"],
        ["my.yaml:8", "several.0.rat"],
    ]
    assert str(raised.value) == "; ".join(raised.value.lines) and "\n" not in str(raised.value)
    copy = pickle.loads(pickle.dumps(raised.value))  # as Ray brings it from a task
    assert copy.lines == raised.value.lines


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40) | st.text(alphabet="epochs:inr{}[]&*!|>-?,'\"#%@\t\n 013.~", max_size=40))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        read(text)
    except ConfigError as error:
        assert "\n" not in str(error)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(ConfigError, match="cannot be read: 'utf-8' codec"):
        read_yaml(tmp_path / "latin.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(ConfigError, match="not a configuration file"):
        read_yaml(tmp_path / "huge.yaml")


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    data = {"b": [1, 2.5, None], "a": {"text": "é: [", "on": True, "1": "1"}}
    write_yaml(tmp_path / "data.yaml", data)
    again = read_yaml(tmp_path / "data.yaml").data
    assert again == data and list(again) == ["b", "a"]


def test_a_text_that_is_read_again_is_as_before_and_named_anew() -> None:
    parse_yaml("sizes: [1, 2]", "my.yaml").data["sizes"].append(3)
    assert parse_yaml("sizes: [1, 2]", "other.yaml").data == {"sizes": [1, 2]}
    for text in ("a: 1\na: 2", "a: 1\n]"):
        for source in ("my.yaml", "other.yaml"):
            with pytest.raises(ConfigError, match=f"^{source}:2: "):
                parse_yaml(text, source)


def test_lines_survive_an_alias() -> None:
    document = parse_yaml("a: &x\n  rate: -1\nb: *x\n", "my.yaml")
    with pytest.raises(ConfigError, match=r"my.yaml:2: b.rate"):
        validate(Inner, document, ("b",))


def test_a_document_without_lines() -> None:
    with pytest.raises(ConfigError, match=r"^preset: epochs: is missing$"):
        validate(Outer, Document({}, "preset"))
    with pytest.raises(ConfigError, match=r"^preset: the key 3 is not text$"):
        validate(Outer, Document({3: 4}, "preset"))


def test_values_in_messages_are_short() -> None:
    assert shown([[[[1]]]] * 100).count("[") < 60 and len(shown("x" * 10**6)) < 100 and "\n" not in shown("a\nb\x1b[0m")


def test_parts_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"adamw": 1, "sgd": 2}
    assert load_object("sgd", known, "optimiser") == 2
    assert load_object("pathlib:Path", known, "optimiser") is Path
    (tmp_path / "raynas_broken_part.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    for reference, message in [
        ("adam", r"unknown optimiser 'adam' \(did you mean 'adamw'\?\); your own: 'module:object'"),
        ("nowhere:thing", "optimiser 'nowhere:thing' cannot be imported: ModuleNotFoundError"),
        ("pathlib:thing", "cannot be imported: AttributeError"),
        (":thing", "cannot be imported: ValueError"),
        (".x:thing", "cannot be imported: TypeError"),
        ("raynas_broken_part:thing", "cannot be imported: ZeroDivisionError"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_object(reference, known, "optimiser")


def test_a_part_may_lie_in_the_current_directory(tmp_path: Path) -> None:
    (tmp_path / "raynas_part_beside_the_user.py").write_text("thing = 7")
    (tmp_path / "yaml.py").write_text("1 / 0")  # what is installed comes first
    code = (
        "from raynas.user_code import load_object; print(load_object('raynas_part_beside_the_user:thing', {}, 'data'))"
    )
    script = tmp_path / "bin" / "command.py"  # as an installed command, which has its own folder on the path
    script.parent.mkdir()
    script.write_text(code)
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "7\n", done.stderr
