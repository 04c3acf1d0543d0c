import asyncio
import base64
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest

from outlive.actors.testing import Server
from outlive.infra import failpoints, streams
from outlive.infra import relay as module
from outlive.infra.bus import Bus, JetStreamError
from outlive.infra.database import Pool
from outlive.infra.records import Claim
from outlive.infra.relay import HELD, Relay

_INSERT = "insert into task (tenant, task_id, kind, status, owner, digest, input) values ('default', $1, 'k', 'running', $2, '', '')"
_OWNER = "018f0000-0000-7000-8000-000000000001"


class World:
    """A relay on real servers, and a journal that is two statements."""

    def __init__(self, server: Server, bus: Bus, pool: Pool) -> None:
        self.server = server
        self.bus = bus
        self.pool = pool
        self.relay = self.new_relay()

    def new_relay(self, bus: Bus | None = None) -> Relay:
        bus = bus or self.bus
        return Relay(
            bus,
            self.pool,
            self.server.subjects,
            ensure=partial(streams.ensure, bus, self.server.subjects, self.server.settings),
        )

    async def claim(self, task_id: str) -> Claim:
        await self.pool.execute(_INSERT, task_id, _OWNER)
        return Claim("default", task_id, "k", 0, 0, 0, 0, 0, 0, 0, 0)

    async def write(self, claim: Claim, count: int) -> list[tuple[int, bytes]]:
        """Make the next events durable; publish nothing."""
        events = [(claim.number(), b'{"n":%d}' % claim.last_seq) for _ in range(count)]
        await self.pool.execute(
            "insert into fact (tenant, task_id, seq, type, event) "
            "select 'default', $1, s, 'note', e from unnest($2::bigint[], $3::bytea[]) as u(s, e)",
            claim.task_id,
            [seq for seq, _ in events],
            [event for _, event in events],
        )
        await self.pool.execute("update task set last_seq = $2 where task_id = $1", claim.task_id, claim.last_seq)
        return events

    async def commit(self, claim: Claim, count: int) -> None:
        self.relay.committed(claim, await self.write(claim, count))

    async def leave(self, claim: Claim, *, due: bool = False) -> None:
        await self.pool.execute(
            "update task set owner = null, sweep_at = outlive.clock() + $2 * interval '1 second' where task_id = $1",
            claim.task_id,
            -1 if due else 60,
        )

    async def row(self, claim: Claim) -> tuple[int, int, bool]:
        row = await self.pool.fetchrow(
            "select published, published_at, sweep_at is null as swept from task where task_id = $1", claim.task_id
        )
        assert row is not None
        return row["published"], row["published_at"], row["swept"]

    async def published(self, claim: Claim) -> list[int]:
        """Every Outlive-Seq of the task in the stream, in the stream's order."""
        numbers: list[int] = []
        async for message in self._messages(claim):
            match = re.search(rb"Outlive-Seq: (\d+)", base64.b64decode(message["hdrs"]))
            assert match and base64.b64decode(message["data"]) == b'{"n":%b}' % match[1]
            numbers.append(int(match[1]))
        return numbers

    async def _messages(self, claim: Claim) -> AsyncIterator[dict[str, Any]]:
        seq, subject = 0, self.subject(claim)
        while True:
            try:
                answer = await self.api("MSG.GET", {"seq": seq + 1, "next_by_subj": subject})
            except JetStreamError:
                return
            seq = answer["message"]["seq"]
            yield answer["message"]

    def subject(self, claim: Claim) -> str:
        return self.server.subjects.progress(claim.tenant, claim.task_id)

    async def api(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await self.bus.api(f"STREAM.{verb}.{self.server.subjects.progress_stream}", body)

    async def settled(self, claims: Iterable[Claim], seconds: float = 10) -> None:
        async with asyncio.timeout(seconds):
            while any(claim.published < claim.last_seq for claim in claims):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)

    async def swept(self, *claims: Claim) -> None:
        async with asyncio.timeout(10):
            while not all([(await self.row(claim))[2] for claim in claims]):  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.05)


@asynccontextmanager
async def _world(server: Server) -> AsyncGenerator[World]:
    async with (
        Bus.of(server.settings, name="relay test") as bus,
        Pool(server.postgres_dsn, application_name="relay test", size=4) as pool,
        anyio.create_task_group() as services,
    ):
        world = World(server, bus, pool)
        services.start_soon(world.relay.run)
        yield world
        services.cancel_scope.cancel()


@pytest.fixture
async def world(shared: Server) -> AsyncIterator[World]:
    async with _world(shared) as world:
        yield world


async def test_events_of_many_tasks_are_in_order_without_gap(world: World) -> None:
    claims = [await world.claim(f"t{n}") for n in range(5)]
    for _ in range(10):
        await asyncio.gather(*(world.commit(claim, 3) for claim in claims))
    await world.settled(claims)
    for claim in claims:
        assert await world.published(claim) == list(range(1, 31))
        last = await world.api("MSG.GET", {"last_by_subj": world.subject(claim)})
        assert claim.published_at == last["message"]["seq"]
    assert (world.relay.lag, world.relay.oldest) == (0, 0.0)


async def test_lag_and_age_are_told(world: World) -> None:
    claim = await world.claim("t")
    failpoints.arm("publish.before", "hang")
    await world.commit(claim, 3)
    await failpoints.reached("publish.before")
    await asyncio.sleep(0.05)
    assert world.relay.lag == 3
    assert 0.05 <= world.relay.oldest < 1
    assert not await world.relay.drain(0.05)
    failpoints.disarm()
    assert await world.relay.drain(5)


async def test_a_long_burst_does_not_stay_in_memory(world: World) -> None:
    claim = await world.claim("t")
    await world.commit(claim, 4 * HELD)
    flow = world.relay._flows[claim.key]
    assert len(flow.queue) == HELD
    await world.commit(claim, 3)
    assert len(flow.queue) <= HELD
    await world.settled([claim])
    assert await world.published(claim) == list(range(1, 4 * HELD + 4))
    assert flow.held == 0


async def test_the_window_bounds_what_is_in_flight(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 2)
    claims = [await world.claim(f"t{n}") for n in range(10)]
    batches = [(claim, await world.write(claim, 5)) for claim in claims]
    for claim, events in batches:
        world.relay.committed(claim, events)
    assert (world.relay._flying, len(world.relay._ready)) == (2, 8)
    await world.settled(claims)
    assert all([await world.published(claim) == [1, 2, 3, 4, 5] for claim in claims])
    assert world.relay._flying == 0


async def test_a_new_owner_with_an_old_mark_repeats_nothing(world: World) -> None:
    former = await world.claim("t")
    await world.commit(former, 5)
    await world.settled([former])
    backlog = [(n, b'{"n":%d}' % n) for n in range(3, 6)]
    claim = replace(former, epoch=1, published=2, published_at=2)
    world.relay.committed(claim, backlog)
    await world.commit(claim, 3)
    await world.settled([claim])
    assert await world.published(claim) == list(range(1, 9))


async def test_a_backlog_that_nobody_handed_in_comes_from_the_table(world: World) -> None:
    claim = await world.claim("t")
    await world.write(claim, 5)
    await world.commit(claim, 2)
    await world.settled([claim])
    assert await world.published(claim) == list(range(1, 8))


async def test_two_relays_at_once_publish_each_event_once(world: World) -> None:
    claims = [await world.claim(f"t{n}") for n in range(10)]
    async with Bus.of(world.server.settings) as bus, anyio.create_task_group() as services:
        other = world.new_relay(bus)
        services.start_soon(other.run)
        twins = [replace(claim) for claim in claims]
        for _ in range(10):
            for claim, twin in zip(claims, twins, strict=True):
                events = await world.write(claim, 2)
                twin.last_seq = claim.last_seq
                world.relay.committed(claim, events)
                other.committed(twin, events)
        await world.settled([*claims, *twins])
        services.cancel_scope.cancel()
    assert all([await world.published(claim) == list(range(1, 21)) for claim in claims])


async def test_a_stream_made_anew_is_filled_from_the_table(world: World) -> None:
    claims = [await world.claim(f"t{n}") for n in range(3)]
    await asyncio.gather(*(world.commit(claim, 300) for claim in claims))
    await world.settled(claims)
    await world.api("DELETE")
    await asyncio.gather(*(world.commit(claim, 5) for claim in claims))
    await world.settled(claims)
    assert all([await world.published(claim) == list(range(1, 306)) for claim in claims])


async def test_a_lost_tail_is_published_again(world: World) -> None:
    claim = await world.claim("t")
    await world.commit(claim, 5)
    await world.settled([claim])
    for seq in (4, 5):
        await world.api("MSG.DELETE", {"seq": seq})
    await world.commit(claim, 1)
    await world.settled([claim])
    assert await world.published(claim) == [1, 2, 3, 4, 5, 6]


async def test_a_purged_task_is_published_again_under_other_ids(world: World) -> None:
    claim, other = await world.claim("t"), await world.claim("older")
    await world.commit(other, 1)
    await world.settled([other])
    await world.commit(claim, 5)
    await world.settled([claim])
    await world.api("PURGE", {"filter": world.subject(claim)})
    await world.commit(claim, 1)
    await world.settled([claim])
    assert await world.published(claim) == [1, 2, 3, 4, 5, 6]


async def test_events_dropped_by_age_stay_dropped_and_the_numbers_go_on(world: World) -> None:
    claim = await world.claim("t")
    await world.commit(claim, 5)
    await world.settled([claim])
    await world.api("PURGE")  # like age, it leaves the stream's first sequence behind what it dropped
    await world.commit(claim, 2)
    await world.settled([claim])
    assert await world.published(claim) == [6, 7]


async def test_a_rewind_is_written_before_anything_is_published_again(world: World) -> None:
    claim = await world.claim("t")
    await world.commit(claim, 5)
    await world.settled([claim])
    await world.pool.execute("update task set published = 5, published_at = 5")
    await world.api("DELETE")
    failpoints.arm("publish.before", "hang", after=2)  # event 6 is refused; the next one is event 1
    await world.commit(claim, 1)
    await failpoints.reached("publish.before")
    assert await world.row(claim) == (0, 0, True)
    assert await world.published(claim) == []
    failpoints.disarm()
    await world.settled([claim])
    assert (await world.row(claim))[0] == 0  # the journal's next record moves it
    assert await world.published(claim) == [1, 2, 3, 4, 5, 6]


async def test_a_stranger_on_the_subject_does_not_stop_the_task(world: World, caplog: pytest.LogCaptureFixture) -> None:
    claim = await world.claim("t")
    await world.commit(claim, 2)
    await world.settled([claim])
    await world.bus.publish_tracked(world.subject(claim), b"hello")
    await world.commit(claim, 1)
    await world.settled([claim])
    assert "a message without Outlive-Seq" in caplog.text
    assert claim.published_at == 4


async def test_a_task_that_was_left_gets_its_mark_and_needs_no_sweep(world: World) -> None:
    claims = [await world.claim(f"t{n}") for n in range(20)]
    for claim in claims:
        await world.commit(claim, 3)
        await world.leave(claim)
        world.relay.left(claim)
    assert await world.relay.drain(5)
    for claim in claims:
        assert await world.row(claim) == (3, claim.published_at, True)
    assert not world.relay._flows


async def test_a_mark_that_comes_late_moves_nothing(world: World) -> None:
    claim = await world.claim("t")
    await world.commit(claim, 3)
    await world.leave(claim)
    await world.pool.execute("update task set epoch = 1")  # claimed again, elsewhere
    world.relay.left(claim)
    assert await world.relay.drain(5)
    assert await world.row(claim) == (0, 0, False)


async def test_a_claim_left_without_events_ends_its_sweep(world: World) -> None:
    claim = await world.claim("t")
    await world.leave(claim)
    world.relay.left(claim)
    assert await world.relay.drain(5)
    assert await world.row(claim) == (0, 0, True)


async def test_a_fenced_claim_publishes_no_more(world: World) -> None:
    claim = await world.claim("t")
    failpoints.arm("publish.before", "hang")
    await world.commit(claim, 3)
    await failpoints.reached("publish.before")
    world.relay.forget(claim)
    failpoints.disarm()
    world.relay.forget(claim)
    assert world.relay.lag == 0
    other = await world.claim("other")
    await world.commit(other, 1)
    await world.settled([other])  # the relay goes on
    assert await world.published(claim) == []


async def test_the_sweep_publishes_what_dead_owners_left(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SWEEP_PAUSE", 0.1)
    swept, marked_late, owned = [await world.claim(name) for name in ("swept", "late", "owned")]
    await world.write(swept, 300)
    await world.leave(swept, due=True)
    await world.commit(marked_late, 2)
    await world.settled([marked_late])
    await world.leave(marked_late, due=True)
    await world.write(owned, 2)
    await world.pool.execute("update task set sweep_at = outlive.clock() where task_id = 'owned'")
    world.relay.forget(marked_late)
    await world.swept(swept, marked_late)
    assert (await world.row(swept))[0] == 300
    assert await world.published(swept) == list(range(1, 301))
    assert (await world.row(marked_late))[0] == 2
    assert await world.published(marked_late) == [1, 2]
    assert await world.published(owned) == []


@pytest.mark.parametrize("point", ["publish.before", "publish.after"])
async def test_failing_around_a_publish_repeats_nothing(world: World, point: str) -> None:
    claim = await world.claim("t")
    failpoints.arm(point, "error", after=2)
    await world.commit(claim, 4)
    await world.settled([claim])
    assert failpoints.hits(point) >= 3
    assert await world.published(claim) == [1, 2, 3, 4]


async def test_an_event_that_is_not_in_the_table_is_waited_for_not_skipped(world: World) -> None:
    claim = await world.claim("t")
    await world.write(claim, 3)
    await world.pool.execute("delete from fact where seq = 2")
    await world.commit(claim, 1)
    async with asyncio.timeout(10):
        while claim.published < 1:  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.01)
    assert not await world.relay.drain(0.3)
    assert await world.published(claim) == [1]
    await world.pool.execute(
        "insert into fact (tenant, task_id, seq, type, event) values ('default', 't', 2, 'note', convert_to('{\"n\":2}', 'UTF8'))"
    )
    await world.settled([claim])
    assert await world.published(claim) == [1, 2, 3, 4]


async def test_nothing_is_lost_doubled_or_reordered_while_nats_is_killed(server: Server) -> None:
    assert server.pair is not None
    async with _world(server) as world:
        claims = [await world.claim(f"t{n}") for n in range(8)]
        over = asyncio.Event()

        async def work(claim: Claim) -> None:
            while not over.is_set() or claim.last_seq <= 100:
                await world.commit(claim, 2)
                await asyncio.sleep(0.005)

        async with anyio.create_task_group() as tasks:
            for claim in claims:
                tasks.start_soon(work, claim)
            for _ in range(3):
                await asyncio.sleep(0.3)
                server.pair.nats.kill()
                await asyncio.sleep(0.1)
                await server.pair.nats.start()
                await world.bus.wait_connected(5)
            over.set()
        await world.settled(claims)
        for claim in claims:
            assert await world.published(claim) == list(range(1, claim.last_seq + 1))


async def test_a_task_left_while_nats_is_away_is_swept_later(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SWEEP_PAUSE", 0.1)
    assert server.pair is not None
    async with _world(server) as world:
        claim = await world.claim("t")
        server.pair.nats.kill()
        await asyncio.sleep(0.1)
        await world.commit(claim, 3)
        await world.leave(claim, due=True)
        world.relay.left(claim)
        assert world.relay.lag == 0  # nothing is held for it
        await server.pair.nats.start()
        await world.swept(claim)
        assert await world.published(claim) == [1, 2, 3]
