"""Values on the command line: ``key=text``, ``key:=json``, whole inputs, labels. Mistakes are usage errors."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from outlive.protocol import codec
from outlive.protocol.budget import Budget
from outlive.protocol.policy import read_budget

_PAIR: Final = re.compile(r"([^:=]+)(:?=)(.*)", re.DOTALL)


def pairs(words: Sequence[str]) -> dict[str, Any]:
    """Read ``key=text`` and ``key:=json`` into one object; a later key wins."""
    return dict(map(_pair, words))


def _pair(word: str) -> tuple[str, Any]:
    match = _PAIR.fullmatch(word)
    if match is None:
        raise click.UsageError(f"'{word}' is neither key=text nor key:=json")
    key, sign, text = match.groups()
    return key, text if sign == "=" else json_value(text, f"the value of {key}")


def task_input(given: str | None, words: Sequence[str]) -> dict[str, Any]:
    """Return a task's input: an object as JSON, ``@file`` or ``-`` (stdin), with pairs added to it."""
    return {**({} if given is None else json_object(given, "--input")), **pairs(words)}


def json_object(given: str, what: str) -> dict[str, Any]:
    """Return an object given as JSON, ``@file`` or ``-`` (stdin)."""
    whole = json_value(text(given, what), what)
    if not isinstance(whole, dict):
        raise click.UsageError(f'{what} must be a JSON object, not {type(whole).__name__}: {{"key": value}}')
    return whole


def value(words: Sequence[str]) -> Any:
    """Return a signal's value: nothing is null, one word is JSON or else text, pairs are an object."""
    if not words:
        return None
    if len(words) > 1 or _PAIR.fullmatch(words[0]):
        return pairs(words)
    try:
        return codec.decode(words[0].encode())
    except msgspec.DecodeError:
        return words[0]


def labels(words: Sequence[str]) -> dict[str, str]:
    """Read ``key=value`` labels."""
    for word in words:
        if not all(word.partition("=")):
            raise click.UsageError(f"the label '{word}' is not key=value")
    return {key: text for key, _, text in (word.partition("=") for word in words)}


def budget(words: str) -> Budget:
    """Read ``tokens=10000,money=0.50``."""
    pairs = [word.partition("=") for word in words.split(",")]
    try:
        limits = {name: float(number) for name, _, number in pairs}
        return read_budget({name: int(limit) if limit.is_integer() else limit for name, limit in limits.items()})
    except (ValueError, msgspec.ValidationError) as error:
        raise click.UsageError(
            f"the budget '{words}' cannot be used: {error}. Write: tokens=10000,money=0.50,steps=100,seconds=3600"
        ) from error


def text(given: str, what: str) -> str:
    """Return what is given as it is, from ``@file``, or from ``-`` (stdin); `what` is named where it cannot be read."""
    if given == "-":
        return sys.stdin.read()
    if not given.startswith("@"):
        return given
    try:
        return Path(given[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{what} {given}: {error}") from error


def json_value(text: str, what: str) -> Any:
    """Read JSON; `what` is named where it is none."""
    try:
        return codec.decode(text.encode())
    except msgspec.DecodeError as error:
        raise click.UsageError(f"{what} is no JSON: {error}: {text[:80]}") from error
