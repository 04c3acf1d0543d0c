"""Passivation and eviction: a task that waits leaves memory, and nothing that comes meanwhile is lost."""

import asyncio
from random import Random
from typing import Any

import pytest

from outlive.actors import App, Task
from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from tests.actors.scene import events, ledger, row_soon, rows, serving
from tests.chaos.harness import signal_many

app = App("passive")
go = app.signal("go", int)
calls: list[str] = []


@app.tool(idempotent=True)
async def note(name: str) -> str:
    calls.append(name)
    return name


@app.task
async def collect(task: Task, count: int) -> list[int]:
    taken: list[int] = []
    for n in range(count):
        taken.append(await task.wait_for(go))
        await task.call(note, f"{task.task_id}-{n}")
        await task.sleep(0.01)
    return taken


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    calls.clear()


@pytest.mark.parametrize("linger", [0.0, 0.02], ids=["at once", "soon"])
async def test_signals_that_come_while_tasks_leave_are_not_lost(shared: Server, linger: float) -> None:
    """The moment in which a task is let go is the moment in which its signals come, again and again."""
    count, names, random = 8, [f"t{n}" for n in range(12)], Random(1)
    async with serving(app, shared, linger=linger) as client:
        for name in names:
            await client.submit(collect.with_options(task_id=name), count)

        async def send(name: str) -> None:
            for n in range(count):
                await signal_many(shared, [name], "go", n)
                await asyncio.sleep(random.uniform(0, 0.08))

        await asyncio.gather(*map(send, names))
        for name in names:
            assert await client.result(name, list[int], 20) == list(range(count))
    assert sorted(calls) == sorted(f"{name}-{n}" for name in names for n in range(count))
    for name in names:
        assert [status for _, status, _ in await ledger(shared, name)] == ["succeeded"] * count
        assert [event["seq"] for event in await events(shared, name) if event.get("final")] == [
            len(await events(shared, name))
        ]


async def test_more_waiting_tasks_than_slots_are_evicted_and_all_finish(shared: Server) -> None:
    names = [f"t{n}" for n in range(60)]
    own = shared.with_settings(slots=5)
    async with Worker(app, own.settings) as worker, serving(App("clerk"), own) as client:
        for start in range(0, len(names), 20):
            await asyncio.gather(
                *(client.submit(collect.with_options(task_id=name), 1) for name in names[start : start + 20])
            )
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go' having count(*) = 60", within=20)
        await row_soon(shared, "select 1 from task where owner is not null having count(*) <= 10", within=10)
        assert worker.supervisor is not None and len(worker.supervisor.actors) <= 10
        await signal_many(own, names, "go", 7)
        for name in names:
            assert await client.result(name, list[int], 20) == [7]
    assert sorted(calls) == sorted(f"{name}-0" for name in names)


async def test_commands_that_come_while_tasks_leave_are_carried_out(shared: Server) -> None:
    random: Any = Random(2)
    names = [f"t{n}" for n in range(30)]
    async with serving(app, shared, linger=0) as client:

        async def steer(name: str) -> None:
            await client.submit(collect.with_options(task_id=name), 1)
            await asyncio.sleep(random.uniform(0, 0.05))
            await client.pause(name)
            await asyncio.sleep(random.uniform(0, 0.02))
            await client.resume(name)
            await client.signal(name, go, 1)

        await asyncio.gather(*map(steer, names))
        for name in names:
            assert await client.result(name, list[int], 20) == [1]
    assert sorted(calls) == sorted(f"{name}-0" for name in names)
    assert await rows(shared, "select 1 from task where status <> 'succeeded' or reasons is not null") == []
    codes = await rows(shared, "select code, count(*) from inbox where verb <> 'submit' group by 1")
    assert [tuple(row) for row in codes] == [("applied", 90)]
