"""An effect that turns out to have happened after somebody said that it had not: marked, shown, and a person is told."""

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import nats
import pytest
from anyio import to_thread
from click.testing import CliRunner
from nats.aio.msg import Msg

from outlive.actors import App, Client, Operation, Outcome, OutcomeUnknown, Task
from outlive.actors.console.cli import cli
from outlive.actors.testing import Server
from outlive.protocol import codec
from outlive.protocol.commands import Resolve
from outlive.protocol.events import Attention
from outlive.protocol.task import Status
from tests.actors.scene import dying, row_soon, rows, serving, told

app = App("late")
effects: list[int] = []
hold = [threading.Event(), threading.Event()]
busy = asyncio.Event()


@app.tool(timeout=0.2)
def send(op: Operation) -> int:
    hold[op.attempt - 1].wait(60)
    effects.append(op.attempt)
    return op.attempt


@app.tool(settle=0)
def twice(op: Operation) -> int:
    raise OutcomeUnknown("the line went dead")


@twice.reconcile
def find(op: Operation) -> Outcome[int]:
    return Outcome.happened(1, matches=2)


@app.tool(read_only=True)
async def keep_busy() -> None:
    await busy.wait()


@app.task
async def mail(task: Task) -> int:
    return await task.call(send)


@app.task
async def double(task: Task) -> int:
    return await task.call(twice)


@app.task
async def occupy(task: Task) -> None:
    await task.call(keep_busy)


@pytest.fixture(autouse=True)
async def _anew() -> AsyncIterator[None]:
    effects.clear()
    for event in hold:
        event.clear()
    busy.clear()
    yield
    for event in hold:
        event.set()
    busy.set()


@asynccontextmanager
async def alarms(server: Server) -> AsyncGenerator["asyncio.Queue[Attention]"]:
    """What is sent to whoever watches for what needs a person."""
    heard: asyncio.Queue[Attention] = asyncio.Queue()

    async def hear(message: Msg) -> None:
        heard.put_nowait(codec.decode(message.data, Attention))

    options = {"token": server.nats_token} if server.nats_token else {}
    connection = await nats.connect(server.nats_url, **options)
    try:
        await connection.subscribe(server.subjects.attention(server.settings.tenant, "*"), cb=hear)
        await connection.flush()
        yield heard
    finally:
        await connection.close()


async def alarm(heard: "asyncio.Queue[Attention]", about: str) -> Attention:
    async with asyncio.timeout(20):
        while about not in (each := await heard.get()).message:
            pass
    return each


async def lost(client: Client, server: Server) -> None:
    """A mail whose thread outlives its timeout, and whose task waits for a person."""
    await client.submit(mail.with_options(task_id="m"))
    await row_soon(server, "select 1 from task where task_id = 'm' and status = 'paused' and owner is null")


async def test_a_success_after_did_not_happen_may_have_happened_twice(
    shared: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker with the hanging thread is busy, so another one sends again when a person says that it did not happen."""
    async with serving(app, shared, slots=1, grace=0.2) as client, alarms(shared) as heard:
        await lost(client, shared)
        await client.submit(occupy.with_options(task_id="o"))
        await row_soon(shared, "select 1 from task where task_id = 'o' and owner is not null")
        hold[1].set()
        async with serving(app, shared):
            await client.command("m", Resolve(operation_id="1", verdict="did_not_happen"))
            assert await client.result("m", int, timeout=20) == 2
            (operation,) = (await client.operations("m")).operations
            assert operation.doubt is None and effects == [2]
            hold[0].set()
            wanted = "attempt 1 of send has happened after all, and was taken not to have: it may have happened twice"
            assert (await alarm(heard, "twice")).message == wanted
            (operation,) = (await client.operations("m")).operations
            assert (operation.doubt, operation.attempts) == (wanted, 2)
            trail = await rows(shared, "select what, detail from audit where task_id = 'm' and who like 'worker %'")
            assert [tuple(row) for row in trail] == [("turned out", f"step 1: {wanted}")]
            monkeypatch.setenv("OUTLIVE_NATS_URL", shared.nats_url)
            monkeypatch.setenv("OUTLIVE_PREFIX", shared.settings.prefix)
            if shared.nats_token:
                monkeypatch.setenv("OUTLIVE_NATS_TOKEN", shared.nats_token)
            for command in ("receipt", "show"):
                shown = await to_thread.run_sync(CliRunner().invoke, cli, [command, "m"])
                assert "may have happened twice" in " ".join(shown.stdout.split())
        busy.set()


async def test_a_success_after_the_end_of_its_task_is_told(shared: Server) -> None:
    async with serving(app, shared, grace=0.2) as client, alarms(shared) as heard:
        await lost(client, shared)
        await client.command("m", Resolve(operation_id="1", verdict="give_up"))
        await row_soon(shared, "select 1 from task where task_id = 'm' and status = 'failed'")
        hold[0].set()
        assert "the task ended without knowing" in (await alarm(heard, "after all")).message


async def test_an_effect_that_was_found_twice_is_marked(shared: Server) -> None:
    async with serving(app, shared) as client, alarms(shared) as heard:
        await client.submit(double.with_options(task_id="d"))
        assert await client.result("d", int, timeout=20) == 1
        found = await alarm(heard, "2 times")
        assert found.message.endswith("find finds it 2 times: it happened more than once")
        (operation,) = (await client.operations("d")).operations
        assert operation.doubt == "find finds it 2 times: it happened more than once"
        assert any("2 times" in message for message in await told(shared, "d"))


async def test_a_success_that_comes_too_late_to_be_written_is_marked(shared: Server) -> None:
    """The worker has lost the task to another one, which had asked and sent again."""
    async with dying(app, shared, linger=30) as client, alarms(shared) as heard:
        await client.submit(mail.with_options(task_id="m"))
        await row_soon(shared, "select 1 from operation where status = 'started'")
        await rows(
            shared,
            "with t as (update task set epoch = epoch + 1, owner = gen_random_uuid() where task_id = 'm') "
            "update operation set attempt = 2 where task_id = 'm'",
        )
        hold[0].set()
        assert "may have happened twice" in (await alarm(heard, "after all")).message
        assert effects == [1] and (await client.get("m")).status is not Status.SUCCEEDED
