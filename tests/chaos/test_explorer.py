"""The explorer finds what is wrong with a user's task at some point, says it in words, and finds nothing in a right one."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from outlive.actors.chaoskit.explorer import Report, explore
from outlive.actors.chaoskit.lane import NotExplorable
from outlive.actors.chaoskit.points import Point, enumerate_points, in_order
from outlive.actors.chaoskit.testimony import Passed
from outlive.actors.testing import Server
from tests.chaos import explored_app

APP = "tests.chaos.explored_app:app"


def _world(folder: Path) -> Callable[..., Any]:
    """Count what happened in a folder, and explore tasks that act there."""

    def count(run: str) -> Mapping[str, int]:
        return explored_app.counted(folder, run)

    return partial(explore, APP, count=count, environment={"EXPLORED_WORLD": str(folder)}, seconds=None)


def _only(*texts: str) -> list[Point]:
    return [Point.read(text) for text in texts]


async def test_a_right_task_has_no_violation(shared: Server, tmp_path: Path) -> None:
    points = _only(
        "kill:effect.before@1", "kill:effect.after@1", "kill:outcome.before_commit@1", "lose:effect.after@2", "twice:claim.after@1",
        "freeze:effect.after@1", "kill:final.after_commit@1",
    )  # fmt: skip
    report: Report = await _world(tmp_path)("right", on=shared, only=points)
    assert report.ok, report.text
    assert sorted(map(str, report.tried)) == sorted(map(str, points))
    assert not report.not_reached
    assert set(report.resent) == {"post"}, "one answer of it was lost"
    assert not report.persons
    assert "no violation" in report.text


async def test_a_tool_wrongly_declared_idempotent_is_found(shared: Server, tmp_path: Path) -> None:
    report: Report = await _world(tmp_path)(
        "wrongly_idempotent", on=shared, only=_only("kill:intent.after_commit@1", "kill:effect.after@1")
    )
    [(finding, points)] = report.violations.items()
    assert list(map(str, points)) == ["kill:effect.after@1"], "before the call nothing had happened"
    assert finding.violation == "counter"
    assert (
        'post_without_key("text":"A") is declared idempotent and was called again with the same key' in finding.message
    )
    assert (
        "the worker was killed (SIGKILL) after post_without_key had happened and before that was recorded"
        in report.text
    )
    assert "--only kill:effect.after@1" in report.text


async def test_a_tool_wrongly_declared_read_only_is_found(shared: Server, tmp_path: Path) -> None:
    report: Report = await _world(tmp_path)("wrongly_read_only", on=shared, only=_only("kill:outcome.before_commit@1"))
    [finding] = report.violations
    assert finding.violation == "counter"
    assert "is declared read_only and was called again: it changes something" in finding.message


async def test_an_effect_outside_of_a_step_is_found(shared: Server, tmp_path: Path) -> None:
    report: Report = await _world(tmp_path)("outside_of_steps", on=shared, only=_only("kill:effect.after@1"))
    found = {finding.violation: finding.message for finding in report.violations}
    assert set(found) == {"outside", "counter"}, report.text
    assert "the function outside_of_steps itself (explored_app.py:" in found["outside"]
    assert "outside of a step: it does so again on every resume" in found["outside"]
    assert "by: 2, undisturbed 1" in found["counter"]


async def test_a_branch_on_what_is_not_recorded_is_found(shared: Server, tmp_path: Path) -> None:
    report: Report = await _world(tmp_path)("branches", on=shared, only=_only("kill:outcome.after_commit@1"))
    [finding] = report.violations
    assert finding.violation == "branch"
    assert "the function took another branch when it was run again" in finding.message
    assert "send_mail" in finding.message
    assert "post" in finding.message


async def test_what_nobody_can_know_is_a_persons_and_no_violation(shared: Server, tmp_path: Path) -> None:
    points = _only("kill:intent.after_commit@1", "kill:effect.after@1", "lose:effect.after@1")
    report: Report = await _world(tmp_path)("paid", on=shared, only=points)
    assert report.ok, report.text
    assert {tool: len(found) for tool, found in report.persons.items()} == {"charge": 3}
    assert "a person decides about charge at 3 points" in report.text


async def test_a_task_that_does_not_end_is_refused_with_what_to_do(shared: Server, tmp_path: Path) -> None:
    with pytest.raises(NotExplorable, match="colect"):
        await _world(tmp_path)("colect", on=shared)


@pytest.mark.slow
@pytest.mark.timeout(900)  # some two hundred runs
@pytest.mark.parametrize("kind", ["right", "paid"])
async def test_right_tasks_at_every_point(shared: Server, tmp_path: Path, kind: str) -> None:
    report: Report = await _world(tmp_path)(kind, on=shared)
    print(report.text)
    assert report.ok, report.text
    assert len(report.tried) == report.points > 30


@pytest.mark.slow
@pytest.mark.timeout(900)  # some two hundred runs
@pytest.mark.parametrize(
    ("kind", "violations"),
    [
        ("wrongly_idempotent", {"counter"}),
        ("wrongly_read_only", {"counter"}),
        ("outside_of_steps", {"outside", "counter"}),
        ("branches", {"branch"}),
    ],
)
async def test_mistakes_are_found_without_being_told_where(
    shared: Server, tmp_path: Path, kind: str, violations: set[str]
) -> None:
    report: Report = await _world(tmp_path)(kind, on=shared)
    print(report.text)
    assert {finding.violation for finding in report.violations} == violations, report.text


def test_the_order_is_the_seeds_and_each_sort_comes_first_once() -> None:
    passed = [Passed("effect.after", n, "send") for n in range(1, 6)] + [Passed("claim.after", 1)]
    points = enumerate_points(passed)
    assert len(points) == 5 * 4 + 3
    assert in_order(points, 7) == in_order(points, 7) != in_order(points, 8)
    assert len({(point.fault, point.name) for point in in_order(points, 7)[:7]}) == 7


def test_a_point_is_read_as_it_is_written() -> None:
    point = Point("kill", "effect.after", 3, "send_mail")
    assert str(Point.read(str(point))) == str(point) == "kill:effect.after@3"
    assert point.words == "the worker was killed (SIGKILL) after send_mail had happened and before that was recorded"
    for wrong in ("kill", "kill:nowhere@1", "kill:effect.after@0", "burn:effect.after@1"):
        with pytest.raises(ValueError, match="is no point"):
            Point.read(wrong)
