import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from outlive.actors.testing import Server
from outlive.infra import reader
from outlive.infra.api import ApiService
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.questions import QuestionRefused
from outlive.infra.reader import Gap, Item, OtherEvent, read
from outlive.protocol.events import SEQ_HEADER, StatusEvent
from outlive.protocol.task import Status
from tests.infra.attention import Attention
from tests.infra.pencil import START, Pencil
from tests.infra.proxy import Proxy


class World:
    """A writer, a reader's connection, and an api service that can be stopped."""

    def __init__(self, server: Server, pencil: Pencil, bus: Bus) -> None:
        self.server = server
        self.pencil = pencil
        self.bus = bus

    def read(
        self, task_id: str = "t", from_seq: int = 1, *, bus: Bus | None = None, follow: bool = False
    ) -> AsyncGenerator[Item]:
        return read(bus or self.bus, self.server.subjects, "default", task_id, from_seq, follow=follow)

    @asynccontextmanager
    async def api(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            await tasks.start(ApiService(self.pencil.pool, self.pencil.bus, self.server.subjects).run)
            yield
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def world_of(server: Server) -> AsyncGenerator[World]:
    async with (
        Bus.of(server.settings, name="writer") as writer,
        Bus.of(server.settings, name="reader") as bus,
        Pool(server.postgres_dsn, application_name="test", size=4) as pool,
    ):
        yield World(server, Pencil(pool, writer, server.subjects), bus)


@pytest.fixture
async def world(shared: Server) -> AsyncIterator[World]:
    async with world_of(shared) as own:
        yield own


@asynccontextmanager
async def unplugged(proxy: Proxy) -> AsyncGenerator[None]:
    """Nothing listens there for a while."""
    host, port = proxy._server.sockets[0].getsockname()[:2]
    proxy._server.close()
    proxy.cut()
    yield
    proxy._server = await asyncio.start_server(proxy._serve, host, port)


async def cut_off(bus: Bus) -> None:
    """Return when a connection has noticed that nothing is there."""
    async with asyncio.timeout(10):
        while bus.connected:  # noqa: ASYNC110  # the bus tells no event of it
            await asyncio.sleep(0.01)


async def numbers(items: AsyncGenerator[Item], count: int | None = None) -> list[int]:
    """The numbers of the next `count` events, or of all to the end."""
    seen: list[int] = []
    async with asyncio.timeout(30), aclosing(items):
        async for item in items:
            assert not isinstance(item, Gap)
            seen.append(item.seq)
            if len(seen) == count:
                break
    return seen


async def test_events_come_once_and_in_order_to_the_end(world: World, attention: Attention) -> None:
    async with world.api(), asyncio.TaskGroup() as tasks:
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 10)
        reading = tasks.create_task(numbers(world.read()))
        await attention.at_rest()
        for _ in range(10):
            await world.pencil.say(claim, 3)
        await world.pencil.end(claim)
        assert await reading == list(range(1, 42))


async def test_a_reader_goes_on_behind_the_last_number_it_has(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 600)
        assert await numbers(world.read(), 600) == list(range(1, 601))
        await world.pencil.say(claim, 5)
        assert await numbers(world.read(from_seq=601), 5) == [601, 602, 603, 604, 605]


async def test_a_new_event_comes_by_itself(world: World, attention: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_SILENCE", (3600.0, 3600.0))  # nobody asks for it
    async with world.api(), aclosing(world.read()) as items:
        claim = await world.pencil.task("t")
        await world.pencil.say(claim)
        await anext(items)
        for _ in range(20):
            waiting = asyncio.ensure_future(anext(items))
            await attention.at_rest()
            await world.pencil.say(claim)
            async with asyncio.timeout(30):
                await waiting


async def test_what_is_committed_and_never_published_is_read_all_the_same(world: World, attention: Attention) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        reading = asyncio.ensure_future(numbers(world.read(), 4))
        await attention.at_rest()
        await world.pencil.say(claim, 3, publish=False)
        await world.pencil.say(claim, 1)
        assert await reading == [1, 2, 3, 4]


async def test_a_lost_last_event_is_found_in_the_silence_after_it(world: World, attention: Attention) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 2)
        reading = asyncio.ensure_future(numbers(world.read()))
        await attention.at_rest()
        await world.pencil.end(claim, publish=False)
        assert await reading == [1, 2, 3]


async def test_events_during_a_cut_are_read_after_it(world: World, attention: Attention) -> None:
    claim = await world.pencil.task("t")
    async with world.api(), Proxy(world.server.nats_url) as proxy, Bus(proxy.url, token=world.server.nats_token) as bus:
        reading = asyncio.ensure_future(numbers(world.read(bus=bus)))
        await world.pencil.say(claim, 10)
        await attention.at_rest()
        async with unplugged(proxy):
            await cut_off(bus)
            await world.pencil.say(claim, 200)
        await world.pencil.say(claim, 5)
        await bus.wait_connected(10)
        await world.pencil.end(claim)
        assert await reading == list(range(1, 217))


async def test_a_link_cut_twenty_times_loses_and_repeats_nothing(world: World) -> None:
    claim = await world.pencil.task("t")
    async with world.api(), Proxy(world.server.nats_url) as proxy, Bus(proxy.url, token=world.server.nats_token) as bus:
        reading = asyncio.ensure_future(numbers(world.read(bus=bus)))
        for _ in range(20):
            await world.pencil.say(claim, 10)
            await bus.wait_connected(10)
            proxy.cut()
            await cut_off(bus)
        await world.pencil.end(claim)
        assert await reading == list(range(1, 202))


async def test_a_killed_server_is_outlived(server: Server, attention: Attention) -> None:
    assert server.pair is not None
    async with world_of(server) as world, world.api():
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 50)
        reading = asyncio.ensure_future(numbers(world.read()))
        await attention.at_rest()
        server.pair.nats.kill()
        await cut_off(world.bus)
        await world.pencil.say(claim, 50, publish=False)
        await server.pair.nats.start()
        await world.pencil.bus.wait_connected(10)
        await world.pencil.end(claim)
        assert await reading == list(range(1, 102))


async def test_a_purged_stream_changes_nothing(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 100)
        await world.bus.api(f"STREAM.PURGE.{world.server.subjects.progress_stream}")
        await world.pencil.say(claim, 10)
        assert await numbers(world.read(), 110) == list(range(1, 111))


async def test_without_a_worker_the_stream_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_PATIENCE", 0.2)
    claim, other = await world.pencil.task("t"), await world.pencil.task("other")
    for _ in range(5):
        await world.pencil.say(claim, 10)
        await world.pencil.say(other, 20)
    await world.pencil.end(claim)
    await world.pencil.say(other, 20)
    for start in (1, 2, 11, 50, 51):
        assert await numbers(world.read(from_seq=start)) == list(range(start, 52))


async def test_without_a_worker_a_shorter_stream_is_waited_out(
    world: World, attention: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_PATIENCE", 0.2)
    claim = await world.pencil.task("t")
    await world.pencil.say(claim, 20)
    await world.bus.api(f"STREAM.PURGE.{world.server.subjects.progress_stream}", {"keep": 5})
    reading = asyncio.ensure_future(numbers(world.read(), 20))
    await attention.until(lambda: attention.searches == 2)  # what it found the first time did not content it
    assert not reading.done()
    async with world.api():
        assert await reading == list(range(1, 21))


async def test_made_up_frames_do_not_move_the_cursor(world: World, attention: Attention) -> None:
    subject = world.server.subjects.progress("default", "t")
    async with world.api():
        claim = await world.pencil.task("t")
        facts = await world.pencil.say(claim, 6)
        reading = asyncio.ensure_future(numbers(world.read()))
        await attention.at_rest()
        forged = facts[5].event
        heard = attention.heard
        made_up: list[tuple[bytes, dict[str, str] | None]] = [
            (b"", None),
            (b"", {"Status": "100", "Description": "Idle Heartbeat"}),
            (b"keepalive", {SEQ_HEADER: "9"}),
            (forged.replace(b'"seq":6', b'"seq":10'), {SEQ_HEADER: "10"}),
            (forged.replace(b'"seq":6', b'"seq":7'), {SEQ_HEADER: "8"}),
            (forged.replace(b'"seq":6', b'"seq":7'), None),
            (forged.replace(b'"seq":6', b'"seq":7').replace(b'"task_id":"t"', b'"task_id":"u"'), {SEQ_HEADER: "7"}),
            (forged.replace(b'"seq":6', b'"seq":999999999'), {SEQ_HEADER: "999999999"}),
        ]
        for payload, headers in made_up:
            await world.bus.publish(subject, payload, headers)
        await attention.until(lambda: attention.heard == heard + len(made_up))
        await attention.at_rest()
        await world.pencil.say(claim, 6)
        await world.pencil.end(claim)
        assert await reading == list(range(1, 14))


async def test_live_events_out_of_order_and_twice_are_put_right(world: World, attention: Attention) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        reading = asyncio.ensure_future(numbers(world.read(), 6))
        await attention.at_rest()
        facts = await world.pencil.say(claim, 6, publish=False)
        await world.pencil.publish(claim, [facts[n] for n in (2, 0, 0, 1, 5, 3, 1, 4)])
        assert await reading == [1, 2, 3, 4, 5, 6]


async def test_unknown_types_and_values_are_handed_on(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        facts = await world.pencil.say(claim, 2, publish=False)
        plan = facts[0].event.replace(b'"type":"note"', b'"type":"plan","items":[1]')
        odd = b'{"type":"status","seq":2,"task_id":"t","tenant":"default","at":"2026-01-01T00:00:00Z","message":"m","status":"dreaming"}'
        for seq, event in ((1, plan), (2, odd)):
            await world.pencil.pool.execute("update fact set event = $2 where seq = $1", seq, event)
        async with aclosing(world.read()) as items:
            first, second = await anext(items), await anext(items)
        assert isinstance(first, OtherEvent)
        assert (first.kind, first.message, first.fields["items"], first.at) == ("plan", "note 1", [1], START)
        assert isinstance(second, OtherEvent)
        assert (second.kind, second.fields["status"]) == ("status", "dreaming")


async def test_removed_history_is_an_explicit_gap_with_a_snapshot(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 10)
        await world.pencil.pool.execute("delete from fact where seq <= 7")
        async with aclosing(world.read(from_seq=3)) as items:
            gap = await anext(items)
            assert isinstance(gap, Gap)
            assert (gap.from_seq, gap.to_seq, gap.task.last_seq, gap.task.status) == (3, 7, 10, Status.RUNNING)
            after = await anext(items)
            assert not isinstance(after, Gap)
            assert after.seq == 8


async def test_a_task_without_any_history_left_ends_with_the_gap(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.say(claim, 3)
        await world.pencil.end(claim)
        await world.pencil.pool.execute("delete from fact")
        async with asyncio.timeout(10):
            items = [item async for item in world.read()]
        assert [type(item) for item in items] == [Gap]


async def test_reading_behind_the_end_ends_at_once(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.end(claim)
        assert await numbers(world.read(from_seq=2)) == []


async def test_a_reopened_task_is_read_past_its_first_end(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.end(claim, Status.FAILED, None)
        await world.pencil.say(claim, 2)
        await world.pencil.end(claim)
        assert await numbers(world.read()) == [1, 2, 3, 4]


async def test_following_goes_on_after_the_end(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        await world.pencil.end(claim, Status.FAILED, None)
        async with asyncio.timeout(10), aclosing(world.read(follow=True)) as items:
            final = await anext(items)
            assert isinstance(final, StatusEvent)
            assert final.final
            await world.pencil.say(claim)
            after = await anext(items)
        assert not isinstance(after, Gap)
        assert after.seq == 2


async def test_an_unknown_task_is_refused(world: World) -> None:
    async with world.api():
        with pytest.raises(QuestionRefused, match="there is no task 'nope' of tenant 'default'"):
            await anext(world.read("nope"))


async def test_an_event_larger_than_a_page_is_read(world: World) -> None:
    async with world.api():
        claim = await world.pencil.task("t")
        facts = await world.pencil.say(claim, 3, publish=False)
        big = facts[1].event.replace(b"note 2", b"x" * 1_040_000)
        await world.pencil.pool.execute("update fact set event = $1 where seq = 2", big)
        assert await numbers(world.read(), 3) == [1, 2, 3]


async def test_a_slow_reader_keeps_a_bounded_backlog(
    world: World, attention: Attention, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BACKLOG", 20)
    async with world.api(), aclosing(world.read()) as items:
        claim = await world.pencil.task("t")
        await world.pencil.say(claim)
        await anext(items)
        heard = attention.heard
        await world.pencil.say(claim, 200)
        await attention.until(lambda: attention.heard >= heard + 200)
        assert await numbers(items, 200) == list(range(2, 202))


async def _subscriptions(world: World) -> int:
    return sum(len(bus.nc._subs) for bus in (world.bus,))


async def test_a_reader_that_is_left_or_cancelled_keeps_no_subscription(world: World, attention: Attention) -> None:
    async with world.api():
        await world.pencil.say(await world.pencil.task("t"), 3)
        before = await _subscriptions(world)
        for _ in range(10):
            assert await numbers(world.read(), 2) == [1, 2]
            with anyio.move_on_after(0.02):
                await numbers(world.read())
            rests = attention.rests
            reading = asyncio.ensure_future(numbers(world.read()))
            await attention.until(lambda: attention.rests > rests)  # noqa: B023  # at once
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
        # The client keeps one subscription of its own for replies.
        assert await _subscriptions(world) <= before + 1
        assert len(world.bus._hooks) == 0


READER = """
import asyncio, os
from outlive.infra.bus import Bus
from outlive.infra.reader import read
from outlive.protocol.subjects import Subjects

async def main():
    async with Bus(os.environ["URL"], token=os.environ.get("TOKEN")) as bus:
        async for _ in read(bus, Subjects(os.environ["PREFIX"]), "default", "t"):
            print("reading", flush=True)

asyncio.run(main())
"""


async def test_killed_readers_leave_nothing_on_the_server(world: World, tmp_path: Path) -> None:
    script = tmp_path / "reader.py"
    script.write_text(READER)
    environment = os.environ | {"URL": world.server.nats_url, "PREFIX": world.server.subjects.prefix}
    if world.server.nats_token:
        environment["TOKEN"] = world.server.nats_token

    async def consumers() -> int:
        state: dict[str, Any] = (await world.bus.api(f"STREAM.INFO.{world.server.subjects.progress_stream}"))["state"]
        return int(state["consumer_count"])

    async def killed() -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), env=environment, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"reading\n"
        process.send_signal(signal.SIGKILL)
        await process.wait()

    async with world.api():
        await world.pencil.say(await world.pencil.task("t"), 100)
        before = await consumers()
        for _ in range(10):
            await asyncio.gather(*(killed() for _ in range(5)))
        assert await consumers() == before == 0


async def test_what_a_reader_yields_is_the_event_as_published(world: World) -> None:
    async with world.api():
        facts = await world.pencil.say(await world.pencil.task("t"), 2)
        async with aclosing(world.read()) as items:
            item = await anext(items)
        assert msgspec.json.encode(item) == facts[0].event
