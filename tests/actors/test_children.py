"""Child tasks: made once, under ids that stay, ended with their parent's cancel, their ends raised where they are awaited."""

import asyncio
from typing import Any

import pytest

from outlive.actors import App, StepFailed, Task, TaskCancelled, TaskFailed
from outlive.actors.testing import Server
from outlive.protocol import ids
from tests.actors.scene import dying, events, row_soon, rows, serving, status_soon, steps, told

app = App("family")
go = app.signal("go", str)
calls: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    calls.clear()


@app.tool(read_only=True)
def square(n: int) -> int:
    calls.append(n)
    return n * n


@app.tool(read_only=True)
def explode() -> int:
    raise ValueError("boom")


@app.task
async def child(task: Task, n: int, wait: bool = False) -> int:
    if wait:
        await task.wait_for(go)
    return await task.call(square, n)


@app.task
async def fails(task: Task) -> int:
    return await task.call(explode)


@app.task
async def parent(task: Task, count: int, wait: bool = False) -> list[int]:
    children = [task.spawn(child, n, wait=wait) for n in range(count)]
    await task.progress("all begun")
    return [await each for each in children]


CHILDREN = "select task_id from task where parent = 'p' order by parent_step::int"


async def test_children_run_side_by_side_and_give_their_results(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(parent.with_options(task_id="p"), 5)
        assert await handle.result(10) == [0, 1, 4, 9, 16]
    assert [row["task_id"] for row in await rows(shared, CHILDREN)] == [
        ids.child_id("default", "p", str(n)) for n in range(1, 6)
    ]
    assert sorted(calls) == [0, 1, 2, 3, 4]


async def test_a_parent_that_died_finds_the_children_that_it_had(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(parent.with_options(task_id="p"), 3, wait=True)
        await row_soon(shared, "select 1 from task where parent = 'p' having count(*) = 3")
        first = await rows(shared, CHILDREN)
        await client.signal(first[0]["task_id"], go, "on")
        await status_soon(shared, first[0]["task_id"], "succeeded")
    async with serving(app, shared) as client:
        for row in first[1:]:
            await client.signal(row["task_id"], go, "on")
        assert await client.result("p", list[int], 10) == [0, 1, 4]
    assert await rows(shared, CHILDREN) == first
    assert sorted(calls) == [0, 1, 2]
    assert (await told(shared, "p")).count("all begun") == 1


async def test_a_parent_in_another_place_than_its_child_hears_of_its_end(shared: Server) -> None:
    """The parent is passivated; its child runs on a worker that lacks the parent's kind."""
    nursery = App("nursery")
    nursery.task(child.fn)
    nursery.signal("go", str)
    async with serving(app, shared, linger=0) as client:
        await client.submit(parent.with_options(task_id="p"), 1, wait=True)
        await row_soon(shared, "select 1 from task where task_id = 'p' and owner is null and waiting_for like 'child%'")
        name = (await rows(shared, CHILDREN))[0]["task_id"]
        await row_soon(
            shared, "select 1 from task where task_id = $1 and owner is null and waiting_for = 'signal go'", name
        )
    async with serving(nursery, shared) as client:
        await client.signal(name, go, "on")
        await status_soon(shared, name, "succeeded")
    async with serving(app, shared) as client:
        assert await client.result("p", list[int], 10) == [0]


@app.task
async def careful(task: Task) -> list[str]:
    ends: list[str] = []
    for kind in (
        task.spawn(fails),
        task.spawn(child.with_options(task_id="chosen", priority=3, labels={"a": "b"}), 1, wait=True),
    ):
        try:
            await kind
        except (TaskFailed, TaskCancelled) as error:
            ends.append(str(error))
    ends.append(await task.wait_for(go))
    return ends


async def test_the_bad_end_of_a_child_is_raised_the_same_on_every_run(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(careful.with_options(task_id="p"))
        await row_soon(shared, "select 1 from task where task_id = 'chosen' and waiting_for = 'signal go'")
        made = await rows(shared, "select parent, parent_step, priority, labels from task where task_id = 'chosen'")
        assert [tuple(row) for row in made] == [("p", "2", 3, '{"a": "b"}')]
        await client.cancel("chosen")
        await row_soon(shared, "select 1 from task where task_id = 'p' and waiting_for = 'signal go'")
        await asyncio.sleep(0.1)
    async with serving(app, shared) as client:
        await client.signal("p", go, "on")
        result = await client.result("p", list[str], 10)
    failed = ids.child_id("default", "p", "1")
    assert result == [f"task {failed} failed: ValueError: boom", "task chosen was cancelled", "on"]


async def test_a_childs_failure_that_is_not_caught_fails_its_parent(shared: Server) -> None:
    @app.task(name="careless")
    async def careless(task: Task) -> int:
        return await task.spawn(fails)

    async with serving(app, shared) as client:
        handle = await client.submit(careless.with_options(task_id="p"))
        with pytest.raises(TaskFailed, match="task p failed: ValueError: boom"):
            await handle.result(10)


@pytest.mark.parametrize("gone", [False, True], ids=["in memory", "while nobody serves"])
async def test_a_cancel_reaches_every_child_whatever_happens_to_the_parent(shared: Server, gone: bool) -> None:
    async with dying(app, shared, linger=0 if gone else 30.0) as client:
        await client.submit(parent.with_options(task_id="p"), 5, wait=True)
        await row_soon(
            shared, "select 1 from task where parent = 'p' and waiting_for = 'signal go' having count(*) = 5"
        )
        if gone:
            await row_soon(shared, "select 1 from task where owner is null having count(*) = 6")
        else:
            await client.cancel("p")
            await row_soon(shared, "select 1 from task where task_id = 'p' and status = 'cancelled'")
    async with serving(App("clerk") if gone else app, shared) as client:
        if gone:
            await client.cancel("p")
        await row_soon(shared, "select 1 from task where status = 'cancelled' having count(*) = 6")
        for row in await rows(shared, CHILDREN):
            final = (await events(shared, row["task_id"]))[-1]
            assert final["final"] and final["message"].startswith("Cancelled by parent p.")
    assert calls == []


async def test_a_child_may_not_take_the_id_of_another_task(shared: Server) -> None:
    @app.task(name="steals")
    async def steals(task: Task) -> int:
        return await task.spawn(child.with_options(task_id="taken"), 1)

    @app.task(name="twins")
    async def twins(task: Task) -> int:
        await task.spawn(child.with_options(task_id="twin"), 1)
        return await task.spawn(child.with_options(task_id="twin"), 1)

    async with serving(app, shared) as client:
        await client.submit(child.with_options(task_id="taken"), 7)
        handle = await client.submit(steals.with_options(task_id="p"))
        with pytest.raises(TaskFailed, match="task_id 'taken' belongs to another task"):
            await handle.result(10)
        handle = await client.submit(twins.with_options(task_id="q"))
        with pytest.raises(TaskFailed, match=r"task_id 'twin' was given to two children \(steps 1 and 2\)"):
            await handle.result(10)


async def test_a_child_that_nobody_awaits_outlives_its_parent(shared: Server) -> None:
    @app.task(name="leaves")
    async def leaves(task: Task) -> str:
        task.spawn(child, 3)
        return "gone"

    async with serving(app, shared) as client:
        assert await (await client.submit(leaves.with_options(task_id="p"))).result(10) == "gone"
        name = (await row_soon(shared, CHILDREN))["task_id"]
        assert await client.result(name, int, 10) == 9
    assert [entry[1:] for entry in await steps(shared, "p")] == [("spawn child", "waiting")]


async def test_failed_steps_of_children_are_not_those_of_the_parent(shared: Server) -> None:
    @app.task(name="distinguishes")
    async def distinguishes(task: Task) -> list[str]:
        ends: list[str] = []
        try:
            await task.spawn(fails)
        except TaskFailed:
            ends.append("child")
        try:
            await task.call(explode)
        except StepFailed:
            ends.append("step")
        return ends

    async with serving(app, shared) as client:
        assert await (await client.submit(distinguishes)).result(10) == ["child", "step"]
