"""However often a command arrives, under whatever ids, it is applied once; another content under a taken id is a conflict."""

import asyncio
import uuid
from typing import Any

import pytest

from outlive.actors import App, Client, Task
from outlive.actors.testing import Server
from outlive.infra.bus import Bus
from outlive.protocol.answers import Code
from outlive.protocol.commands import Pause, Resume
from outlive.protocol.errors import CommandRefused
from tests.actors.scene import dying, row_soon, rows, serving, status_soon
from tests.chaos.harness import send

app = App("submits")
go = app.signal("go", str)
made: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_made_yet() -> None:
    made.clear()


@app.tool(idempotent=True)
async def make(name: str) -> str:
    made.append(name)
    return name


@app.task
async def once(task: Task, name: str = "once") -> str:
    return await task.call(make, name)


@app.task
async def waits(task: Task, name: str = "waits") -> str:
    await task.call(make, name)
    return await task.wait_for(go)


async def _purge(server: Server) -> None:
    async with Bus.of(server.settings, name="purge") as bus:
        await bus.api(f"STREAM.PURGE.{server.subjects.commands_stream}")


async def _taken_in(server: Server, task_id: str, count: int) -> None:
    await row_soon(server, "select 1 from inbox where task_id = $1 having count(*) = $2", task_id, count)


async def test_the_same_submit_six_times_makes_one_task(server: Server) -> None:
    """Without a message id, with one, with a command id; after its end, a purge, the stream's window and a restart."""
    fields: dict[str, Any] = {"kind": "once", "input": {"name": "x"}}
    async with serving(app, server):
        for _ in range(6):
            await send(server, "bare", "submit", **fields)
        for n in range(6):
            await send(server, "headed", "submit", headers={"Nats-Msg-Id": f"m-{n % 2}"}, **fields)
            await asyncio.sleep(0.11)  # longer than the stream's own window
        for n in range(6):
            await send(server, "named", "submit", headers={"Nats-Msg-Id": f"other-{n}"}, command_id="c-1", **fields)
        for task_id, count in (("bare", 6), ("headed", 2), ("named", 1)):
            await _taken_in(server, task_id, count)
            await status_soon(server, task_id, "succeeded")
        await _purge(server)
        assert server.pair is not None
        await server.pair.nats.restart()
    async with serving(app, server) as client:
        await send(server, "bare", "submit", **fields)
        await send(server, "headed", "submit", headers={"Nats-Msg-Id": "m-0"}, **fields)
        await send(server, "named", "submit", command_id="c-1", **fields)
        handle = await client.submit(once.with_options(task_id="named", command_id="c-2"), "x")
        assert handle.answer is not None and handle.answer.code is Code.DUPLICATE
        assert (
            handle.answer.message
            == "task named exists with this kind and input (it is succeeded): no second one was made"
        )
        await _taken_in(server, "bare", 7)
    assert made == ["x"] * 3
    assert len(await rows(server, "select 1 from task")) == 3
    codes = await rows(server, "select task_id, code, count(*) from inbox group by 1, 2 order by 1, 2")
    assert [tuple(row) for row in codes] == [
        ("bare", "applied", 1), ("bare", "duplicate", 6), ("headed", "applied", 1), ("headed", "duplicate", 1),
        ("named", "applied", 1), ("named", "duplicate", 1),
    ]  # fmt: skip


async def test_a_taken_id_with_another_content_is_a_conflict_that_names_the_task(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(waits.with_options(task_id="a", command_id="c"), "a")
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
        for change, message in (
            (
                waits.with_options(task_id="a", command_id="d"),
                "task a exists (kind waits, running) with another kind or input",
            ),
            (
                waits.with_options(task_id="a", command_id="c"),
                "the command id c was used before, for task a and with another",
            ),
            (
                waits.with_options(task_id="b", command_id="c"),
                "the command id c was used before, for task a and with another",
            ),
        ):
            with pytest.raises(CommandRefused) as refused:
                await client.submit(change, "b")
            assert refused.value.answer.code is Code.CONFLICT and message in str(refused.value)
        with pytest.raises(CommandRefused, match="choose another task id"):
            await client.submit(once.with_options(task_id="a"), "a")
        assert (await client.submit(waits.with_options(task_id="a"), "a")).answer.code is Code.DUPLICATE  # type: ignore[union-attr]
    async with serving(app, shared) as client:  # the first one recovers, and is what it was
        await client.signal("a", go, "on")
        assert await client.result("a", str, 10) == "on"
    assert made == ["a"]
    assert [row["task_id"] for row in await rows(shared, "select task_id from task")] == ["a"]
    assert len(await rows(shared, "select 1 from audit where what = 'submit'")) == 4


async def test_a_command_that_arrives_after_the_end_is_answered_and_changes_nothing(shared: Server) -> None:
    async with serving(app, shared, poll=0.2) as client:
        await client.submit(waits.with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
        await send(shared, "t", "pause", headers={"Nats-Msg-Id": "first"})
        await status_soon(shared, "t", "paused")
        await client.cancel("t")
        await status_soon(shared, "t", "cancelled")
        facts = await rows(shared, "select seq from fact")
        await send(shared, "t", "pause", headers={"Nats-Msg-Id": "second"})
        await row_soon(shared, "select 1 from inbox where command_id = 'second' and code = 'too_late'")
        await send(shared, "t", "pause", headers={"Nats-Msg-Id": "first"})
        await asyncio.sleep(0.3)
        assert await rows(shared, "select seq from fact") == facts
        health = await client.health()
        assert health.commands_behind == 0


async def test_every_operators_command_takes_effect_once_however_quickly_they_follow(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(waits.with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
        for command in (Pause(), Resume(), Pause(), Resume(), Pause()):
            assert (await client.command("t", command)).code is Code.APPLIED
        await status_soon(shared, "t", "paused")
        for command in (Resume(), Pause(), Resume()):
            assert (await client.command("t", command)).code is Code.APPLIED
        await client.signal("t", go, "on")
        assert await client.result("t", str, 10) == "on"
    assert [row["code"] for row in await rows(shared, "select code from inbox where pos is not null")] == [
        "applied"
    ] * 9


async def test_a_client_that_gives_up_waiting_leaves_the_task_alone(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(waits.with_options(task_id="t"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await handle.result()
        with pytest.raises(TimeoutError, match="it runs on"):
            await handle.result(0.1)
        waiting = asyncio.ensure_future(handle.result(10))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await client.signal("t", go, "on")
        async with Client(shared.settings) as second:
            assert await second.result("t", str, 10) == "on"
    assert made == ["waits"]


async def test_a_missing_task_id_is_made_up_and_given_back(shared: Server) -> None:
    async with serving(app, shared) as client:
        handles = [await client.submit(once) for _ in range(2)]
        assert [await handle.result(10) for handle in handles] == ["once", "once"]
    assert len({handle.task_id for handle in handles}) == 2
    assert all(uuid.UUID(handle.task_id).version == 7 for handle in handles)
