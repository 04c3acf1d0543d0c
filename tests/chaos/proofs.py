"""Short proofs that the product must pass, and must not pass with a bug in it: see `test_seeded_bugs.py`.

Each takes a server of its own and how many seconds it waits for what must come; it raises where a promise is broken.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from nats.aio.msg import Msg

from outlive.actors import App, Operation, Outcome, Task
from outlive.actors.testing import Server, virtual_time
from outlive.infra import database, pull, relay
from outlive.infra.journal import Refused
from outlive.protocol.task import ReasonCode, Status
from outlive.protocol.tools import RetryPolicy
from tests.actors.scene import dying, row_soon, rows, serving, status_soon
from tests.infra.ingesting import bench
from tests.infra.test_journal import Desk, one_step
from tests.infra.test_relay import _world

Proof: TypeAlias = Callable[[Server, float], Awaitable[None]]


async def a_late_effect_is_waited_for(server: Server, within: float) -> None:
    """A request that arrives when the world has been asked once, and before the settle time is over, is the only one."""
    app, sent, asked = App("late"), list[str](), list[str]()

    @app.tool(timeout=5, settle=60, retries=RetryPolicy(base=0))
    async def post(op: Operation) -> None:
        if sent:
            sent.append(op.key)
        raise TimeoutError

    @post.reconcile
    def find(op: Operation) -> Outcome[None]:
        if not asked:
            asked.append(op.key)
            sent.append(op.key)  # it arrives just now
            return Outcome.did_not_happen()
        return Outcome.happened(None)

    @app.task
    async def once(task: Task) -> None:
        await task.call(post)

    quick = {"linger": 0.0, "poll": 0.1, "heartbeat": 0.2}
    async with virtual_time(server.postgres_dsn) as time, serving(app, server, **quick) as client:
        handle = await client.submit(once.with_options(task_id="t"))
        await row_soon(server, "select 1 from fact where status = 'waiting' or status = 'succeeded'", within=within)
        await time.advance(66)
        await handle.result(timeout=within)
    assert len(sent) == 1, f"{len(sent)} effects"


async def a_lost_tail_is_published_again(server: Server, within: float) -> None:
    """Events that the stream has lost come before the next one."""
    async with _world(server) as world:
        claim = await world.claim("t")
        await world.commit(claim, 5)
        await world.settled([claim], within)
        for seq in (4, 5):
            await world.api("MSG.DELETE", {"seq": seq})
        await world.commit(claim, 1)
        await world.settled([claim], within)
        published = await world.published(claim)
    assert published == [1, 2, 3, 4, 5, 6]


async def what_a_dead_owner_left_is_published(server: Server, within: float) -> None:
    """Events that nobody published before their task was left are published by whoever lives."""
    pause, relay._SWEEP_PAUSE = relay._SWEEP_PAUSE, 0.1  # type: ignore[misc]
    try:
        async with _world(server) as world:
            claim = await world.claim("t")
            await world.write(claim, 3)
            await world.leave(claim, due=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await world.swept(claim)
            published = await world.published(claim)
    finally:
        relay._SWEEP_PAUSE = pause  # type: ignore[misc]
    assert published == [1, 2, 3]


async def a_command_that_comes_twice_counts_once(server: Server, within: float) -> None:
    """The same command in two batches is one row in its task's inbox."""
    async with bench(server) as own, own.ingester(), asyncio.timeout(within):
        await own.send("t", {"type": "submit", "kind": "k", "input": {}, "command_id": "s"})
        for _ in range(2):
            await own.send("t", {"type": "signal", "name": "go", "command_id": "go"})
            await own.settled()
        assert await own.fetch("select inbox_head from task") == [(1,)]


async def a_message_lost_on_its_way_is_read_again(server: Server, within: float) -> None:
    """A link that loses a message in the middle costs time, and no command."""
    hear, lost = pull.Feed._on_message, list[str]()

    async def losing(feed: pull.Feed, raw: Msg) -> None:
        if raw.subject.endswith("t3.submit") and not lost:
            lost.append(raw.subject)
        else:
            await hear(feed, raw)

    pull.Feed._on_message = losing  # type: ignore[method-assign,assignment]
    try:
        async with bench(server) as own, own.ingester(), asyncio.timeout(within):
            for n in range(6):
                await own.send(f"t{n}", {"type": "submit", "kind": "k", "input": {}, "command_id": f"s{n}"})
                if n in {0, 5}:  # it has its consumer; then all have been read
                    await own.settled()
            assert lost
            assert await own.fetch("select count(*) from task") == [(6,)]
    finally:
        pull.Feed._on_message = hear  # type: ignore[method-assign]


async def a_record_follows_the_one_before_it(server: Server, within: float) -> None:
    """What follows another state than the table's is refused, though owner and epoch are right."""
    await _refused_after(server, within, "version = version + 2")


async def a_former_owner_writes_nothing(server: Server, within: float) -> None:
    """A record under an epoch that has passed is refused."""
    await _refused_after(server, within, "epoch = epoch + 1")


async def _refused_after(server: Server, within: float, change: str) -> None:
    connection = await database.connect(server.postgres_dsn, application_name="test")
    try:
        desk = Desk(server, connection)
        [claim] = await desk.tasks(1)
        async with asyncio.timeout(within), desk.journal() as journal:
            line = journal.open(claim)
            await line.commit(one_step(claim))
            await connection.execute(f"update task set {change}")  # noqa: S608  # one of two texts
            [done] = await asyncio.gather(line.commit(one_step(claim)), return_exceptions=True)
        assert isinstance(done, Refused)
    finally:
        await connection.close()


async def another_call_at_a_place_is_not_taken_for_done(server: Server, within: float) -> None:
    """A step whose call the code has changed pauses its task."""

    def version(text: str) -> App:
        app = App(f"version-{text}")
        go = app.signal("go", bool)

        @app.tool(read_only=True)
        def look(what: str) -> str:
            return what

        @app.task
        async def looks(task: Task) -> str:
            found = await task.call(look, text)
            await task.wait_for(go)
            return found

        return app

    old, new = version("a"), version("b")
    async with dying(old, server) as client:
        await client.submit(old.kinds["looks"].with_options(task_id="t"))
        await row_soon(server, "select 1 from task where waiting_for is not null")
    async with serving(new, server) as client:
        await client.signal("t", "go", True)
        query = "select status from task where status in ('paused', 'succeeded') and owner is null"
        assert (await row_soon(server, query, within=within))["status"] == "paused"


async def a_poison_task_is_quarantined(server: Server, within: float) -> None:
    """A task whose workers die again and again is stopped after the third."""
    app = App("poison")
    begun = asyncio.Event()

    @app.tool(read_only=True)
    async def never() -> None:
        begun.set()
        await asyncio.sleep(3600)

    @app.task
    async def poison(task: Task) -> None:
        await task.call(never)

    for n in range(3):
        begun.clear()
        async with dying(app, server) as client, asyncio.timeout(within):
            if n == 0:
                await client.submit(poison.with_options(task_id="t"))
            await begun.wait()
    begun.clear()
    async with serving(app, server) as client:
        ends = asyncio.create_task(begun.wait()), asyncio.create_task(status_soon(server, "t", "paused"))
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED, timeout=within)
        for end in ends:
            end.cancel()
        assert not begun.is_set(), "it runs a fourth time"
        record = await client.get("t")
        assert record.status == Status.PAUSED
        assert [reason.reason for reason in record.reasons] == [ReasonCode.QUARANTINED]
    assert len(await rows(server, "select 1 from death")) == 3
