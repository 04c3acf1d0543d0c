"""The path after a lost answer, for each declaration, and the line that `outlive check` prints."""

from typing import Any

import pytest

from outlive.actors import App, Limit, Outcome
from outlive.protocol.paths import Path, after_lost_answer, describe_path

HOUR = 3600.0


def large(amount: int) -> bool:
    return amount > 100


def find_it(amount: int) -> Outcome[str]:
    return Outcome.unknown(str(amount))


DECLARED: list[tuple[dict[str, Any], bool, Path, str]] = [
    ({"read_only": True}, False, "send_again", "repeated freely"),
    ({"idempotent": True}, False, "send_again", "sent again with the same key"),
    ({"idempotent": True}, True, "send_again", "sent again with the same key"),
    (
        {"idempotent": True, "requires_approval": True},
        False,
        "send_again",
        "your yes, then sent again with the same key",
    ),
    (
        {"idempotent": True, "key_ttl": 86_400},
        False,
        "send_again",
        "sent again with the same key for 1 d, then a person decides",
    ),
    (
        {"idempotent": True, "key_ttl": 90},
        True,
        "send_again",
        "sent again with the same key for 90 s, then find_it is asked",
    ),
    ({}, True, "ask", "once; lost answer -> find_it is asked"),
    (
        {"settle": 60},
        True,
        "ask",
        'once; lost answer -> find_it is asked, its "no" counts 2 min after the call',
    ),
    ({"requires_approval": True}, True, "ask", "your yes, then once; lost answer -> find_it is asked"),
    (
        {"requires_approval": large},
        True,
        "ask",
        "your yes where large says so, then once; lost answer -> find_it is asked",
    ),
    ({}, False, "person", "WARNING lost answer -> a person decides"),
    ({"settle": 5}, False, "person", "WARNING lost answer -> a person decides"),
    (
        {"requires_approval": lambda amount: amount > 100},
        False,
        "person",
        "WARNING your yes for some arguments, then once; lost answer -> a person decides",
    ),
]


@pytest.mark.parametrize(("flags", "reconciled", "path", "line"), DECLARED)
def test_every_declaration_has_its_path(flags: dict[str, Any], path: Path, line: str, *, reconciled: bool) -> None:
    @App("shop").tool(**flags)
    def act(amount: int) -> str:
        return str(amount)

    if reconciled:
        act.reconcile(find_it)
    assert after_lost_answer(act) == path
    assert describe_path(act) == f"act: {line}"
    assert (path == "person") == ("WARNING" in line)


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Limit(calls=10, burst=5), "repeated freely; at most 10 calls in 1 s, 5 at once"),
        (Limit(calls=1, per=60), "repeated freely; at most 1 call in 60 s"),
    ],
)
def test_the_line_names_the_limit(limit: Limit, said: str) -> None:
    @App("shop").tool(read_only=True, rate_limit=limit)
    def look(amount: int) -> str:
        return str(amount)

    assert describe_path(look) == f"look: {said}"


@pytest.mark.parametrize(("reconciled", "after"), [(False, "person"), (True, "ask")])
def test_a_forgotten_key_protects_no_longer(after: Path, *, reconciled: bool) -> None:
    @App("shop").tool(idempotent=True, key_ttl=HOUR)
    def act(amount: int) -> str:
        return str(amount)

    if reconciled:
        act.reconcile(find_it)
    assert after_lost_answer(act, sent_for=HOUR - 1) == "send_again"
    assert after_lost_answer(act, sent_for=HOUR) == after
