"""How a call is shown to a person: as it would be written, cut to a line that still looks like one."""

from typing import Any

import msgspec
import pytest

from outlive.actors.history import call_text


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({}, "send()"),
        ({"n": 7, "deep": False}, "send(7, false)"),
        ({"to": "x" * 60}, f'send("{"x" * 35}...")'),
        ({"one": ["y" * 60], "two": {"z": 1}}, f'send(["{"y" * 34}...], {{"z":1}})'),
        ({"a": "x" * 60, "b": "y" * 60, "c": 3}, f'send("{"x" * 35}...", "{"y" * 35}...", 3)'),
        ({"a": "x" * 60, "b": "y" * 60, "c": "z" * 60}, f'send("{"x" * 35}...", "{"y" * 35}...", ...)'),
    ],
)
def test_a_call_is_cut_between_its_quotes(arguments: dict[str, Any], shown: str) -> None:
    assert call_text("send", msgspec.json.encode(arguments), [*arguments]) == shown
