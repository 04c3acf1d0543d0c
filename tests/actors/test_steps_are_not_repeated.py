"""What is recorded is not done again: steps, notes, times, ids, random numbers."""

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from outlive.actors import App, StepFailed, Task
from outlive.actors.testing import Server
from tests.actors.scene import dying, events, ledger, row_soon, serving, steps, told

app = App("steps")
go = app.signal("go", str)
calls: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    calls.clear()


@app.tool(read_only=True)
def look(name: str) -> str:
    calls.append(name)
    return name.upper()


@app.tool(read_only=True, durable="before_next")
def look_durably(name: str) -> str:
    calls.append(name)
    return name.upper()


@app.tool(idempotent=True)
async def write(name: str) -> str:
    calls.append(name)
    return name.upper()


@app.tool(read_only=True)
def refuse(name: str) -> str:
    calls.append(name)
    raise ValueError(f"no {name}")


@app.task
async def story(task: Task) -> list[Any]:
    """Something of everything, then a signal."""
    values: list[Any] = [task.now(), task.uuid(), task.random()]
    await task.progress("begun", done=0, total=2)
    values.append(await task.call(look, "a"))
    values.append(await task.call(write, "b"))
    await task.progress("half", done=1, total=2)
    values += [task.now(), task.uuid(), task.random()]
    try:
        await task.call(refuse, "c")
    except StepFailed as failed:
        values.append([failed.failure.type, failed.failure.message, str(failed)])
    values.append(await task.wait_for(go))
    values += [task.uuid(), task.random()]
    await task.progress("done", done=2, total=2)
    return [str(value) if isinstance(value, datetime | UUID) else value for value in values]


async def test_after_a_death_a_task_sees_what_it_saw_before_and_nothing_is_made_twice(shared: Server) -> None:
    seen: list[tuple[str, str, str]] = []
    for n in range(3):
        async with dying(app, shared) as client:
            if n == 0:
                await client.submit(story.with_options(task_id="t"))
            await row_soon(shared, "select 1 from fact where task_id = 't' and status = 'waiting'")
            await asyncio.sleep(0.1)
        assert calls == ["a", "b", "c"]
        seen = await steps(shared, "t")
    async with serving(app, shared) as client:
        await client.signal("t", go, "x")
        result = await client.result("t", list[Any], 10)
    assert calls == ["a", "b", "c"]
    assert (await steps(shared, "t"))[: len(seen)] == seen
    assert result[3:5] == ["A", "B"]
    assert result[8] == ["ValueError", "no c", "step 11: ValueError: no c"]
    assert result[9] == "x"
    assert len({result[1], result[6], result[10]}) == 3 and len({result[2], result[7], result[11]}) == 3
    assert all(0 <= number < 1 for number in (result[2], result[7], result[11]))
    notes = [event["message"] for event in await events(shared, "t") if event["type"] == "note"]
    assert notes == ["begun", "half", "done"]
    assert await ledger(shared, "t") == [("6", "succeeded", 1)]


async def test_random_values_of_two_tasks_differ(shared: Server) -> None:
    async with serving(app, shared) as client:
        for name in ("a", "b"):
            await client.submit(story.with_options(task_id=name))
            await client.signal(name, go, "x")
        first, second = [await client.result(name, list[Any], 10) for name in ("a", "b")]
    assert first[1] != second[1] and first[2] != second[2]


@app.task
async def before_next(task: Task) -> str:
    one = await task.call(look_durably, "one")
    calls.append(f"then {one}")
    await task.call(look, "two")
    return await task.wait_for(go)


async def test_a_result_asked_to_be_durable_is_so_before_the_next_line(shared: Server) -> None:
    durable_then: list[Any] = []

    @app.tool(read_only=True, name="look_at_the_table")
    async def look_at_the_table() -> int:
        durable_then.extend(await steps(shared, "d"))
        return 1

    @app.task(name="durable")
    async def durable(task: Task) -> int:
        await task.call(look_durably, "one")
        return await task.call(look_at_the_table)

    async with serving(app, shared) as client:
        await (await client.submit(durable.with_options(task_id="d"))).result(10)
    assert ("1", "look_durably", "completed") in durable_then


async def test_a_resumed_task_says_what_it_keeps_and_where_it_goes_on(shared: Server) -> None:
    entered, release = asyncio.Event(), asyncio.Event()

    @app.tool(idempotent=True, name="slow_write")
    async def slow_write() -> str:
        entered.set()
        await release.wait()
        return "written"

    @app.task(name="slow")
    async def slow(task: Task) -> str:
        await task.call(look, "a")
        return await task.call(slow_write)

    async with dying(app, shared) as client:
        await client.submit(slow.with_options(task_id="s"))
        await asyncio.wait_for(entered.wait(), 10)
    entered.clear()
    release.set()
    async with serving(app, shared) as client:
        assert await client.result("s", str, 10) == "written"
    resumed = [event for event in await events(shared, "s") if event["type"] == "resumed"]
    assert [(event["steps_kept"], event["steps_repeated"], event["next_step"]) for event in resumed] == [
        (1, ["2"], "slow_write")
    ]
    assert calls == ["a"]
    assert await ledger(shared, "s") == [("2", "succeeded", 2)]


async def test_a_new_task_with_mail_is_started_not_resumed(shared: Server) -> None:
    """Commands that came before the first worker are events too; they are no run of the task."""
    async with serving(app, shared) as client:  # registers the kind
        pass
    other = App("other")
    async with serving(other, shared) as client:
        await client.submit("story", task_id="n")
        await client.signal("n", go, "early")
    async with serving(app, shared) as client:
        await client.result("n", list[Any], 10)
    assert [event["type"] for event in await events(shared, "n")][:2] == ["command", "status"]
    assert not any("Resumed" in message for message in await told(shared, "n"))
