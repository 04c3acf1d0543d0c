"""Values on the command line."""

from pathlib import Path
from typing import Any

import click
import pytest

from outlive.actors.console import arguments


def test_pairs_are_texts_or_json() -> None:
    words = ["folder=.", "url=http://x/?a=b:=c", "n:=1", "deep:=true", 'list:=[1, "two"]', "empty=", "folder=src"]
    assert arguments.pairs(words) == {
        "folder": "src", "url": "http://x/?a=b:=c", "n": 1, "deep": True, "list": [1, "two"], "empty": "",
    }  # fmt: skip


def test_large_integers_keep_all_digits() -> None:
    assert arguments.pairs(["n:=123456789012345678901234567890"]) == {"n": 123456789012345678901234567890}


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("folder", "'folder' is neither key=text nor key:=json"),
        ("=x", "'=x' is neither key=text nor key:=json"),
        ("n:=x", "the value of n is no JSON"),
    ],
)
def test_what_is_no_pair_is_a_usage_error(word: str, said: str) -> None:
    with pytest.raises(click.UsageError, match="^" + said):
        arguments.pairs([word])


def test_an_input_comes_from_the_line_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "input.json").write_text('{"a": 1}')
    assert arguments.task_input('{"a": 1, "b": 2}', ["b=x"]) == {"a": 1, "b": "x"}
    assert arguments.task_input(f"@{tmp_path}/input.json", []) == {"a": 1}
    assert arguments.task_input(None, []) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [("[1]", "must be a JSON object, not list"), ("{", "no JSON"), ("@nowhere", "No such file")],
)
def test_what_is_no_input_is_a_usage_error(given: str, said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        arguments.task_input(given, [])


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ([], None),
        (["5"], 5),
        (["true"], True),
        (["hello"], "hello"),
        (['"5"'], "5"),
        (["a=1"], {"a": "1"}),
        (["a:=1", "b=x"], {"a": 1, "b": "x"}),
    ],
)
def test_a_signal_carries_json_or_text_or_an_object(words: list[str], value: Any) -> None:
    assert arguments.value(words) == value


def test_labels_have_key_and_value() -> None:
    assert arguments.labels(["team=a", "x=b=c"]) == {"team": "a", "x": "b=c"}
    for wrong in ("team", "=a", "team="):
        with pytest.raises(click.UsageError, match="is not key=value"):
            arguments.labels([wrong])
