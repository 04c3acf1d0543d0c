"""Each command in each state of a task: its answer, the status after it, its progress event, its line in the audit trail.

The same with the task's owner, with a clerk, and with a clerk of a worker that lacks the task's kind.
"""

import asyncio
from typing import Any, NamedTuple

import pytest

from outlive.actors import App, Client, Task
from outlive.actors.testing import Server
from outlive.protocol.answers import Code
from outlive.protocol.commands import AnyCommand, Cancel, Pause, Resume, Signal
from outlive.protocol.errors import CommandRefused
from tests.actors.scene import events, row_soon, rows, serving, status_soon

app = App("table")
other = App("other")
go = app.signal("go", str)
release = asyncio.Event()

COMMANDS: dict[str, AnyCommand] = {
    "pause": Pause(), "resume": Resume(), "cancel": Cancel(), "signal": Signal(name="go", value="on"),
}  # fmt: skip


@app.tool(idempotent=True)
async def effect(name: str) -> str:
    await release.wait()
    return name


@app.task
async def story(task: Task, how: str) -> str:
    if how == "fails":
        await task.call(effect.with_options(timeout=0.001), how)
    if how == "flight":
        await task.call(effect, how)
    return await task.wait_for(go) if how != "ends" else how


class Cell(NamedTuple):
    """What a command does in a state."""

    code: Code
    status: str
    """Of the task, once all is done."""
    after: str = ""
    """Of the task when the command was decided, where that is another."""


APPLIED, ILLEGAL, LATE = Code.APPLIED, Code.ILLEGAL_TRANSITION, Code.TOO_LATE
ENDED = {verb: Cell(LATE, "") for verb in COMMANDS}
TABLE: dict[str, dict[str, Cell]] = {
    "queued": {
        "pause": Cell(APPLIED, "paused"), "resume": Cell(ILLEGAL, "queued"), "cancel": Cell(APPLIED, "cancelled"),
        "signal": Cell(APPLIED, "queued"),
    },
    "flight": {
        "pause": Cell(APPLIED, "paused", "running"), "resume": Cell(ILLEGAL, "running"),
        "cancel": Cell(APPLIED, "cancelled", "running"), "signal": Cell(APPLIED, "succeeded", "running"),
    },
    "memory": {
        "pause": Cell(APPLIED, "paused", "running"), "resume": Cell(ILLEGAL, "running"),
        "cancel": Cell(APPLIED, "cancelled", "running"), "signal": Cell(APPLIED, "succeeded", "running"),
    },
    "waiting": {
        "pause": Cell(APPLIED, "paused"), "resume": Cell(ILLEGAL, "running"), "cancel": Cell(APPLIED, "cancelled"),
        "signal": Cell(APPLIED, "running"),
    },
    "paused": {
        "pause": Cell(APPLIED, "paused"), "resume": Cell(APPLIED, "running"), "cancel": Cell(APPLIED, "cancelled"),
        "signal": Cell(APPLIED, "paused"),
    },
    "failed": {
        "pause": Cell(ILLEGAL, "failed"), "resume": Cell(ILLEGAL, "failed"), "cancel": Cell(ILLEGAL, "failed"),
        "signal": Cell(APPLIED, "failed"),
    },
    "succeeded": ENDED,
    "cancelled": ENDED,
}  # fmt: skip
WITHOUT_ACTOR = ("waiting", "paused", "failed", "succeeded", "cancelled")


@pytest.fixture(autouse=True)
def _fresh() -> None:
    release.clear()


async def _prepare(server: Server, client: Client, state: str) -> None:
    """Bring a task per command into a state, with a worker that has the kind."""
    how = {"flight": "flight", "failed": "fails", "succeeded": "ends"}.get(state, "waits")
    for verb in COMMANDS:
        await client.submit(story.with_options(task_id=f"{state}-{verb}"), how)
    for task_id in (f"{state}-{verb}" for verb in COMMANDS):
        if state == "flight":
            await row_soon(server, "select 1 from operation where task_id = $1 and status = 'started'", task_id)
            continue
        if how == "waits":
            await row_soon(server, "select 1 from task where task_id = $1 and waiting_for = 'signal go'", task_id)
        if state == "paused":
            await client.pause(task_id)
        elif state == "cancelled":
            await client.cancel(task_id)
        if state not in {"memory", "waiting"}:
            await status_soon(server, task_id, state)
        elif state == "waiting":
            await status_soon(server, task_id, "running")


async def _command(client: Client, state: str, verb: str) -> tuple[Code, str]:
    try:
        answer = await client.command(f"{state}-{verb}", COMMANDS[verb])
    except CommandRefused as refused:
        answer = refused.answer
    return answer.code, answer.message


async def _check(server: Server, client: Client, state: str, **expected: str) -> None:
    """Give each command to its task, and look at what has become of it; `expected` statuses win over the table's."""
    answers = {verb: await _command(client, state, verb) for verb in COMMANDS}
    release.set()
    before = {"flight": "running", "memory": "running", "waiting": "running"}.get(state, state)
    for verb, cell in TABLE[state].items():
        task_id, (code, message) = f"{state}-{verb}", answers[verb]
        where = f"{verb} of a task that is {state}: {message}"
        assert code is cell.code, where
        status = expected.get(verb, cell.status or state)
        await row_soon(server, "select 1 from task where task_id = $1 and status = $2", task_id, status)
        last = (
            await rows(
                server, "select who, what, before, after, detail from audit where task_id = $1 order by id", task_id
            )
        )[-1]
        after = cell.after or (before if code is not APPLIED else cell.status)
        assert tuple(last) == ("tester", verb, before, after, f"{code}: {message}"), where
        told = await events(server, task_id)
        if state in {"failed", "succeeded", "cancelled"}:
            assert told[-1].get("final"), where
        else:
            event = [event for event in told if event["type"] == "command"][-1]
            assert (event["verb"], event["code"], event["by"], event["message"]) == (verb, code, "tester", message), (
                where
            )
        assert [event["seq"] for event in told if event.get("final")] in ([], [len(told)]), where
    assert not await rows(server, "select 1 from task where reasons is not null and status <> 'paused'")


async def test_with_an_owner_or_the_clerk_of_a_worker_that_has_the_kind(shared: Server) -> None:
    async with serving(app, shared, grace=0.3) as client:
        for state in ("memory", "paused", "failed", "succeeded", "cancelled"):
            await _prepare(shared, client, state)
        await _prepare(shared, client, "flight")
        await _check(shared, client, "flight", resume="running")
        for state in ("memory", "paused", "failed", "succeeded", "cancelled"):
            await _check(shared, client, state)
        assert "outlive retry failed-resume" in (await _command(client, "failed", "resume"))[1]
        assert (await _command(client, "succeeded", "pause"))[1].startswith("Task succeeded-pause succeeded at 20")


async def test_without_an_actor_on_a_worker_that_has_the_kind(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        await _prepare(shared, client, "waiting")
        answers = {verb: await _command(client, "waiting", verb) for verb in COMMANDS}
        assert {verb: code for verb, (code, _) in answers.items()} == {
            verb: cell.code for verb, cell in TABLE["waiting"].items()
        }
        for verb, status in (
            ("pause", "paused"),
            ("resume", "running"),
            ("cancel", "cancelled"),
            ("signal", "succeeded"),
        ):
            await status_soon(shared, f"waiting-{verb}", status)
        audit = await rows(shared, "select what, before from audit order by what")
        assert [tuple(row) for row in audit] == [(verb, "running") for verb in sorted(COMMANDS)]


async def test_on_a_worker_that_lacks_the_kind(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        for state in WITHOUT_ACTOR:
            await _prepare(shared, client, state)
    async with serving(other, shared, poll=0.2) as client:
        for verb in COMMANDS:
            await client.submit("story", {"how": "waits"}, task_id=f"queued-{verb}")
        for state in ("queued", *WITHOUT_ACTOR):
            await _check(shared, client, state)
        await client.resume("queued-pause")  # it never began: it is queued again
        await status_soon(shared, "queued-pause", "queued")
    async with serving(app, shared) as client:  # and what is to go on goes on
        for task_id in ("queued-resume", "queued-pause", "paused-resume"):
            await client.signal(task_id, go, "on")
        for task_id in ("queued-resume", "queued-signal", "queued-pause", "waiting-signal", "paused-resume"):
            assert await client.result(task_id, str, 10) == "on"
        assert any(event["message"] == "Started: story." for event in await events(shared, "queued-pause"))


async def test_a_child_of_a_cancelled_task_and_the_end_of_a_child_leave_no_line_in_the_audit_trail(
    shared: Server,
) -> None:
    """The trail is about what people do; a cancel that reaches a child says on whose behalf."""

    @app.task(name="has_child")
    async def has_child(task: Task) -> Any:
        await task.spawn(story, "ends")
        return await task.spawn(story, "waits")

    async with serving(app, shared) as client:
        await client.submit(has_child.with_options(task_id="parent"))
        child = (
            await row_soon(shared, "select task_id from task where parent = 'parent' and waiting_for = 'signal go'")
        )[0]
        await client.cancel("parent")
        await row_soon(shared, "select 1 from task where task_id = $1 and status = 'cancelled'", child)
    trail = await rows(shared, "select task_id, who, what from audit order by id")
    assert [tuple(row) for row in trail] == [("parent", "tester", "cancel"), (child, "parent parent", "cancel")]
