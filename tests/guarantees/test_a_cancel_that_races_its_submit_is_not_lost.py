"""Stop pressed in the first moment: the task ends cancelled without an effect, or the cancel is told that it came too early."""

import asyncio
from random import Random

import pytest

from outlive.actors import App, Client, Task
from outlive.actors.testing import Server
from outlive.protocol.answers import Code
from outlive.protocol.errors import CommandRefused
from tests.actors.scene import events, row_soon, rows, serving

app = App("race")
touched: list[str] = []


@app.tool(idempotent=True)
async def touch(name: str) -> str:
    touched.append(name)
    return name


@app.task
async def slow_start(task: Task, name: str) -> str:
    await task.sleep(0.5)
    return await task.call(touch, name)


async def _submit(client: Client, name: str, delay: float) -> None:
    await asyncio.sleep(delay)
    await client.submit(slow_start.with_options(task_id=name), name)


async def _cancel(client: Client, name: str, delay: float) -> Code:
    await asyncio.sleep(delay)
    try:
        return (await client.cancel(name)).code
    except CommandRefused as refused:
        return refused.answer.code


@pytest.mark.parametrize("times", [30, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_cancel_around_its_submit_cancels_or_says_that_it_was_too_early(shared: Server, times: int) -> None:
    random, names = Random(times), [f"t{n}" for n in range(times)]
    touched.clear()
    async with serving(app, shared) as client:
        delays = [random.choice([(0.0, random.uniform(0, 0.05)), (random.uniform(0, 0.05), 0.0)]) for _ in names]
        cancels: list[asyncio.Task[Code]] = []
        async with asyncio.TaskGroup() as group:
            for name, (early, late) in zip(names, delays, strict=True):
                group.create_task(_submit(client, name, early))
                cancels.append(group.create_task(_cancel(client, name, late)))
        codes = {name: cancel.result() for name, cancel in zip(names, cancels, strict=True)}
        await row_soon(shared, "select 1 from task where ended_at is not null having count(*) = $1", times, within=30)
    ended = {row["task_id"]: row["status"] for row in await rows(shared, "select task_id, status from task")}
    assert set(codes.values()) <= {Code.APPLIED, Code.UNKNOWN_TASK}
    assert ended == {name: "cancelled" if code is Code.APPLIED else "succeeded" for name, code in codes.items()}
    assert sorted(touched) == sorted(name for name, status in ended.items() if status == "succeeded")
    for name in names:
        assert (await events(shared, name))[-1]["final"]
