"""What a watcher sees."""

import io
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from rich.console import Console

from outlive.actors.console.bars import BarScreen
from outlive.actors.console.screen import JsonScreen, LineScreen, Screen
from outlive.infra.reader import Gap, Item
from outlive.protocol.events import NoteEvent, PlanEvent, ResumedEvent, StatusEvent, StepEvent
from outlive.protocol.plan import Item as PlanItem
from outlive.protocol.task import Failure, Reason, ReasonCode, Status, TaskRecord

AT = datetime(2030, 1, 1, 12, 30, 1, tzinfo=UTC)
REASON = Reason(reason=ReasonCode.OPERATOR, since=AT, do="outlive resume t", message="lunch")


def record(status: Status, **fields: Any) -> TaskRecord:
    return TaskRecord(task_id="t", tenant="default", kind="k", status=status, created_at=AT, updated_at=AT, **fields)


def common(seq: int, message: str) -> dict[str, Any]:
    return {"seq": seq, "task_id": "t", "tenant": "default", "at": AT, "message": message}


def events() -> Iterator[Item]:
    """A task that is paused, resumed by another worker and succeeds."""
    yield StatusEvent(**common(1, "Started: k."), status=Status.RUNNING)
    yield StepEvent(**common(2, "look"), step_id="1", name="look", status="completed")
    yield NoteEvent(**common(3, "looked 1 of 4 times"), step_id="2", done=1, total=4)
    yield StatusEvent(**common(4, "Paused: lunch"), status=Status.PAUSED, reasons=[REASON])
    yield ResumedEvent(**common(5, "Resumed by worker w: 1 step kept."), worker="w", epoch=2, steps_kept=1)
    yield Gap(from_seq=6, to_seq=8, task=record(Status.RUNNING))
    yield NoteEvent(**common(9, "looked 4 of 4 times"), step_id="9", done=4, total=4)
    yield StatusEvent(**common(10, "Succeeded after 4 steps."), status=Status.SUCCEEDED, final=True)


def play(screen: Screen) -> None:
    with screen:
        screen.doing("starting Postgres")
        screen.line("what [a tool] printed")
        for event in events():
            screen.event("t", event)
        screen.end(record(Status.SUCCEEDED, result={"n": 4}))


def test_without_a_terminal_there_is_a_line_per_event(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    play(LineScreen(Console(file=out, width=200, highlight=False, markup=False)))
    assert out.getvalue().splitlines() == [
        "starting Postgres",
        "what [a tool] printed",
        "     1  12:30:01  Started: k.",
        "     2  12:30:01  look",
        "     3  12:30:01  looked 1 of 4 times",
        "     4  12:30:01  Paused: lunch",
        "                  to go on: outlive resume t",
        "     5  12:30:01  Resumed by worker w: 1 step kept.",
        "events 6 to 8 are kept no more; the task is running, 0 steps done",
        "     9  12:30:01  looked 4 of 4 times",
        "    10  12:30:01  Succeeded after 4 steps.",
    ]
    assert capsys.readouterr().out == '{"n":4}\n'


def test_lines_of_several_tasks_name_them() -> None:
    out = io.StringIO()
    screen = LineScreen(Console(file=out, width=200), named=True)
    screen.event("t", next(events()))
    assert out.getvalue() == "t       1  12:30:01  Started: k.\n"


def test_in_a_terminal_a_bar_moves_and_what_matters_stands_above_it(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    play(BarScreen(Console(file=out, width=100, force_terminal=True, color_system=None, markup=False, highlight=False)))
    text = out.getvalue()
    assert "looked 4 of 4 times" in text
    assert "4/4" in text
    for line in ("Paused: lunch", "to go on: outlive resume t", "Resumed by worker w", "Succeeded after 4 steps."):
        assert line in text
    assert capsys.readouterr().out == '{"n":4}\n'


def test_a_plan_moves_the_bar_unless_the_task_says_itself_how_far_it_is() -> None:
    out = io.StringIO()
    screen = BarScreen(Console(file=out, width=100, force_terminal=True, color_system=None, markup=False))
    items = [PlanItem(name, name) for name in ("list", "read", "report")]
    with screen:
        screen.event("t", PlanEvent(**common(1, "Plan, version 1: list; read; report"), version=1, items=items))
        screen.event("t", NoteEvent(**common(2, "step 2 of 3: read"), step_id="2", item="read"))
        done = StepEvent(
            **common(3, "step 3 of 3: writing"), step_id="3", name="write", status="completed", item="report"
        )
        screen.event("t", done)
    text = out.getvalue()
    assert "Plan, version 1: list; read; report" in text
    assert "step 3 of 3: writing" in text
    assert "2/3" in text
    with screen:
        screen.event("t", NoteEvent(**common(4, "step 2 of 3: 7 of 9"), step_id="4", item="read", done=7, total=9))
        screen.event("t", done)
    assert out.getvalue().rindex("7/9") > out.getvalue().rindex("2/3")


def test_for_programs_there_is_an_object_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    play(JsonScreen())
    captured = capsys.readouterr()
    lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in captured.out.splitlines()]
    assert [line["type"] for line in lines] == [
        "status", "step", "note", "status", "resumed", "gap", "note", "status", "end",
    ]  # fmt: skip
    assert lines[-1] == {"type": "end", "task_id": "t", "status": "succeeded", "result": {"n": 4}, "reasons": []}
    assert captured.err == "starting Postgres\nwhat [a tool] printed\n"


def test_a_failure_shows_its_traceback() -> None:
    out = io.StringIO()
    failure = Failure(type="RuntimeError", message="a bug", traceback="Traceback ...\nRuntimeError: a bug\n")
    LineScreen(Console(file=out, width=200)).end(record(Status.FAILED, failure=failure))
    assert out.getvalue() == "Traceback ...\nRuntimeError: a bug\n"
