"""Sleeps and signals: what is waited for needs no process, is taken once, in order, and never lost."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from outlive.actors import App, Task
from outlive.actors.testing import Server, virtual_time
from outlive.protocol.answers import Code
from outlive.protocol.commands import Signal as SignalCommand
from outlive.protocol.errors import CommandRefused
from tests.actors.scene import (
    dying,
    events,
    row_soon,
    rows,
    serving,
    steps,
    told,
)

app = App("waits")
go = app.signal("go", int)
name = app.signal("name", str)


@app.task
async def nap(task: Task, seconds: float) -> float:
    begun = task.now()
    await task.sleep(seconds)
    return (task.now() - begun).total_seconds()


@app.task
async def take(task: Task, count: int, limit: float | None = None) -> list[Any]:
    """Signals in the order in which they were taken; a wait that times out gives its message."""
    taken: list[Any] = []
    for _ in range(count):
        try:
            taken.append(await task.wait_for(go, timeout=limit))
        except TimeoutError as error:
            taken.append(str(error))
    taken.append(await task.wait_for(name))
    return taken


async def test_a_sleep_ends_at_its_deadline_by_the_databases_clock_whoever_wakes_it(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(nap.with_options(task_id="short"), 0.3)
        await client.submit(nap.with_options(task_id="killed"), 1.0)
        await client.submit(nap.with_options(task_id="long"), 86_400.0)
        await row_soon(shared, "select 1 from task where task_id = 'long' and waiting_for = 'sleep'")
        assert 0.3 <= await client.result("short", float, 10) < 10
    deadline = await rows(shared, "select wait_until from fact where task_id = 'long' and status = 'waiting'")
    async with virtual_time(shared.postgres_dsn) as time, serving(app, shared, linger=0, poll=0.2) as client:
        assert 1.0 <= await client.result("killed", float, 10) < 10
        await row_soon(
            shared, "select 1 from task where task_id = 'long' and owner is null and due_at = $1", deadline[0][0]
        )
        await time.advance(86_000)
        await asyncio.sleep(0.5)
        assert [row["status"] for row in await rows(shared, "select status from task where task_id = 'long'")] == [
            "running"
        ]
        await time.advance(400)
        assert 86_400 <= await client.result("long", float, 10) < 86_430
    assert await rows(shared, "select 1 from fact where task_id = 'long' and name = 'sleep'") != []
    assert [entry for entry in await steps(shared, "long") if entry[1] == "sleep"] == [
        ("2", "sleep", "waiting"),
        ("2", "sleep", "completed"),
    ]


@pytest.mark.parametrize("linger", [30.0, 0.0], ids=["in memory", "passivated"])
async def test_signals_are_taken_once_in_order_whenever_they_come(shared: Server, linger: float) -> None:
    async with serving(app, shared, linger=linger) as client:
        await client.submit(take.with_options(task_id="t"), 4)
        await client.signal("t", name, "last")  # of another name: does not stand in the way
        for n in range(2):
            await client.signal("t", go, n)
        await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for = 'signal go'")
        if not linger:
            await row_soon(
                shared, "select 1 from task where task_id = 't' and waiting_for = 'signal go' and owner is null"
            )
        for n in range(2, 4):
            await client.signal("t", go, n)
        assert await client.result("t", list[Any], 10) == [0, 1, 2, 3, "last"]
    taken = await rows(shared, "select inbox_pos from fact where task_id = 't' and inbox_pos is not null order by seq")
    assert [row["inbox_pos"] for row in taken] == [2, 3, 4, 5, 1]
    assert [row["taken"] for row in await rows(shared, "select taken from inbox where pos is not null")] == [True] * 5


async def test_signals_sent_while_nobody_serves_are_there_after_a_death(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(take.with_options(task_id="t"), 2)
        await client.signal("t", go, 0)
        await row_soon(shared, "select 1 from fact where task_id = 't' and status = 'waiting'")
    other = App("other")
    async with serving(other, shared, poll=0.1) as client:  # a worker that lacks the kind; the clerk keeps them
        await client.signal("t", go, 1)
        await client.signal("t", name, "x")
    async with serving(app, shared) as client:
        assert await client.result("t", list[Any], 10) == [0, 1, "x"]


async def test_a_wait_times_out_at_the_same_place_on_every_run(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(take.with_options(task_id="t"), 2, 0.2)
        await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for = 'signal name'")
        await client.signal("t", go, 7)  # too late
        await asyncio.sleep(0.1)
    async with serving(app, shared) as client:
        await client.signal("t", name, "x")
        assert await client.result("t", list[Any], 10) == ["signal go did not come within 0.2 s"] * 2 + ["x"]
    assert [status for _, _, status in await steps(shared, "t")] == ["waiting", "failed"] * 2 + ["waiting", "completed"]


async def test_a_timeout_is_kept_by_a_task_that_left_memory(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        await client.submit(take.with_options(task_id="t"), 1, 0.5)
        await client.signal("t", name, "x")
        assert await client.result("t", list[Any], 10) == ["signal go did not come within 0.5 s", "x"]


async def test_a_value_of_another_type_is_refused_to_its_sender_and_passed_over(shared: Server) -> None:
    wrong = SignalCommand(name="go", value="five")
    async with serving(app, shared) as client:
        await client.submit(take.with_options(task_id="t"), 1)
        await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for = 'signal go'")
        with _refused(Code.INVALID) as refused:
            await client.command("t", wrong)
        assert "signal go" in str(refused.value) and "Expected `int`, got `str`" in str(refused.value)
        await client.signal("t", go, 5)
        await client.signal("t", name, "x")
        assert await client.result("t", list[Any], 10) == [5, "x"]
        await client.submit(take.with_options(task_id="u"), 1)
        await row_soon(shared, "select 1 from task where task_id = 'u' and waiting_for = 'signal go'")
    other = App("other")
    async with serving(other, shared, poll=0.1) as client:  # the clerk does not know the type
        await client.command("u", wrong)
        await row_soon(shared, "select 1 from inbox where task_id = 'u' and code = 'applied' and verb = 'signal'")
    async with serving(app, shared) as client:
        await client.signal("u", go, 6)
        await client.signal("u", name, "y")
        assert await client.result("u", list[Any], 10) == [6, "y"]


async def test_a_kept_value_of_another_type_is_told_and_waited_on(shared: Server) -> None:
    """The type of a signal changed while a value was kept."""
    old, new = App("old"), App("new")
    old_go, old_name = old.signal("go", str), old.signal("name", str)
    new_go = new.signal("go", int)

    @old.task(name="late")
    async def before(task: Task) -> int:
        value = await task.wait_for(old_name)
        return len(value)

    @new.task(name="late")
    async def after(task: Task) -> int:
        await task.wait_for(name)
        return await task.wait_for(new_go)

    async with serving(old, shared) as client:
        await client.submit(before.with_options(task_id="t"))
        await client.signal("t", old_go, "five")
    async with serving(new, shared) as client:
        await client.signal("t", name, "x")
        await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for = 'signal go'")
        await client.signal("t", new_go, 5)
        assert await client.result("t", int, 10) == 5
    passed = next(message for message in await told(shared, "t") if "passed over" in message)
    assert passed.startswith("Signal go of tester (")
    assert passed.endswith("another type and is passed over: $: Expected `int`, got `str`. The task waits on")


async def test_two_branches_that_wait_for_one_name_each_get_a_signal(shared: Server) -> None:
    both = App("both")
    tick = both.signal("tick", int)

    @both.task
    async def pair(task: Task) -> list[int]:
        return sorted(await task.gather(*(task.wait_for(tick) for _ in range(3))))

    async with serving(both, shared) as client:
        await client.submit(pair.with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for = 'signal tick'")
        for n in range(3):
            await client.signal("t", tick, n)
        assert await client.result("t", list[int], 10) == [0, 1, 2]


async def test_a_sleep_that_cannot_be_is_refused(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(nap.with_options(task_id="t"), -1.0)
        with pytest.raises(Exception, match=r"sleep\(-1.0\): give seconds from 0 to ten years"):
            await handle.result(10)


def _refused(code: Code) -> Any:
    return pytest.raises(CommandRefused, check=lambda error: error.answer.code is code)


async def test_what_a_waiting_task_waits_for_is_told(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(take.with_options(task_id="t"), 1, 3600.0)
        await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for = 'signal go'")
        record = await client.get("t")
        assert record.waiting_for == "signal go" and record.wait_until is not None
        assert abs(record.wait_until - record.updated_at - timedelta(hours=1)) < timedelta(seconds=10)
    assert "Waits for signal go" in await told(shared, "t")
    assert (await events(shared, "t"))[-1]["wait_until"] is not None
