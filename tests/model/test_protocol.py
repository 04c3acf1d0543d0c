"""Thousands of schedules of the protocol, and bugs that some hundreds of them find, each by the invariant that is its own."""

from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import Protocol
from tests.model.walk import walk

SEARCH: Final = settings(
    deadline=None, derandomize=True, database=None, report_multiple_bugs=False, suppress_health_check=[HealthCheck.too_slow],
    stateful_step_count=40,
)  # fmt: skip

BUGS: Final = {
    "no fence": "i1_one_writer",
    "no version check": "i1_one_writer",
    "no fence of the cursor": "i1_one_writer",
    "no inbox key": "i2_no_command_twice",
    "no consumer sequence": "I2",
    "no generation check": "I2",
    "effect before intent": "i3_intent_before_effect",
    "no reconcile": "i4_unknown_is_not_failed",
    "no settle": "i4_unknown_is_not_failed",
    "no expected last": "i5_progress_is_gapless",
    "no sweep": "I5",
    "any kind": "i7_nobody_owns_what_it_cannot_run",
    "approval is not asked": "a_yes_comes_first",
    "deaths do not count": "a_poison_task_is_stopped",
}
"""What breaks when one rule is left out."""

long = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("examples", [100, pytest.param(2_000, marks=long)])
def test_no_search_breaks_an_invariant(examples: int) -> None:
    """Hypothesis looks for a schedule, and makes it short where it finds one."""
    run_state_machine_as_test(Protocol, settings=settings(SEARCH, max_examples=examples))


@pytest.mark.parametrize("schedules", [range(500), pytest.param(range(500, 12_000), marks=long)], ids=["some", "many"])
def test_no_schedule_breaks_an_invariant(schedules: range) -> None:
    for seed in schedules:
        walk(Protocol, seed)


@pytest.mark.parametrize("bug", BUGS)
def test_a_rule_that_is_left_out_is_missed(bug: str) -> None:
    class Without(Protocol):
        bugs = frozenset({bug})

    for seed in range(1_500):
        try:
            walk(Without, seed)
        except AssertionError as broken:
            if f": {BUGS[bug]}: " in str(broken):
                return
    pytest.fail(f"nothing breaks without it: {bug}")
