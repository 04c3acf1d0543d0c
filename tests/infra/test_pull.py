import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from outlive.actors.testing import Server
from outlive.infra import pull
from outlive.infra.bus import Bus
from outlive.infra.pull import Feed, Interrupted, Message, Source
from tests.infra.proxy import Proxy


@pytest.fixture
async def bus(shared: Server) -> AsyncIterator[Bus]:
    options = {"token": shared.nats_token} if shared.nats_token else {}
    async with Bus(shared.nats_url, **options) as connected:
        yield connected


@pytest.fixture
def source(shared: Server, bus: Bus) -> Source:
    return Source(bus, shared.subjects.commands_stream)


async def fill(bus: Bus, server: Server, first: int, last: int, size: int = 0) -> None:
    """Publish numbered messages."""
    subject = server.subjects.command("default", "t", "signal")
    acks = [bus.publish_tracked(subject, json.dumps(n).encode().ljust(size)) for n in range(first, last + 1)]
    await asyncio.gather(*acks)


async def collect(feed: Feed, count: int) -> list[int]:
    """Read that many messages and return their numbers."""
    numbers: list[int] = []
    async with asyncio.timeout(10):
        while len(numbers) < count:
            numbers += [json.loads(message.body) for message in await feed.batch(5)]
    return numbers


async def test_thousands_come_in_order_from_the_start_asked_for(shared: Server, bus: Bus, source: Source) -> None:
    await fill(bus, shared, 1, 3000)
    async with Feed(source, 501) as feed:
        assert await collect(feed, 2500) == list(range(501, 3001))
        assert await feed.batch(0.05) == []
        await fill(bus, shared, 3001, 3001)
        assert await collect(feed, 1) == [3001]


async def test_a_batch_ends_at_its_size(shared: Server, bus: Bus, source: Source) -> None:
    await fill(bus, shared, 1, 24, size=900_000)
    async with Feed(source, 1) as feed:
        numbers: list[int] = []
        while len(numbers) < 24:
            batch = await feed.batch(5)
            assert sum(len(message.body) for message in batch) <= pull.BATCH_BYTES + 900_000
            numbers += [json.loads(message.body) for message in batch]
    assert numbers == list(range(1, 25))


async def test_an_idle_feed_stays_trusted(source: Source) -> None:
    async with Feed(source, 1) as feed:
        assert await feed.batch(3.5 * pull.HEARTBEAT) == []


async def test_a_lost_message_is_noticed(
    shared: Server, bus: Bus, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept = Feed._accept

    def lossy(self: Feed, raw: object) -> None:
        if getattr(raw, "data", b"") != b"3":
            accept(self, raw)  # type: ignore[arg-type]

    monkeypatch.setattr(Feed, "_accept", lossy)
    await fill(bus, shared, 1, 5)
    async with Feed(source, 1) as feed:
        assert await collect(feed, 2) == [1, 2]
        with pytest.raises(Interrupted, match="4 of the consumer came instead of 3"):
            await feed.batch(5)


async def test_a_lost_last_message_is_noticed_by_the_heartbeat(
    shared: Server, bus: Bus, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Feed, "_accept", lambda self, raw: None)
    await fill(bus, shared, 1, 1)
    async with Feed(source, 1) as feed:
        with pytest.raises(Interrupted, match="missing"):
            await feed.batch(5)


async def test_a_deleted_consumer_or_stream_interrupts(shared: Server, bus: Bus, source: Source) -> None:
    for verb in ("CONSUMER.DELETE.{stream}.{name}", "STREAM.DELETE.{stream}"):
        async with Feed(source, 1) as feed:
            assert await feed.batch(0.2) == []
            await bus.api(verb.format(stream=source.stream, name=feed._name))
            with pytest.raises(Interrupted, match="the server ended the consumer"):
                await feed.batch(5)
    await bus.api(f"STREAM.CREATE.{source.stream}", {"name": source.stream, "subjects": [shared.subjects.all_commands]})


async def test_a_frozen_server_interrupts(shared: Server) -> None:
    async with (
        Proxy(shared.nats_url) as proxy,
        Bus(proxy.url) as cut,
        Feed(Source(cut, shared.subjects.commands_stream), 1) as feed,
    ):
        proxy.answers_left = 0
        with pytest.raises(Interrupted, match="no heartbeat"):
            await feed.batch(10)
        proxy.answers_left = None


async def test_nothing_is_lost_when_the_link_is_cut_with_messages_on_the_way(shared: Server, bus: Bus) -> None:
    numbers: list[int] = []
    interruptions = 0
    async with Proxy(shared.nats_url) as proxy, Bus(proxy.url) as cut, asyncio.timeout(15):
        source = Source(cut, shared.subjects.commands_stream)
        await fill(bus, shared, 1, 2000, size=200)
        while len(numbers) < 2000:
            await cut.wait_connected(5)
            limit = proxy.passed + 100_000
            try:
                async with Feed(source, len(numbers) + 1) as feed:
                    while len(numbers) < 2000:
                        numbers += [json.loads(message.body) for message in await feed.batch(1)]
                        if proxy.passed > limit and interruptions < 5:
                            proxy.cut()
            except Interrupted:
                interruptions += 1
    assert numbers == list(range(1, 2001))
    assert interruptions >= 2


async def test_a_message_is_recognised_by_time_and_digest(shared: Server, bus: Bus, source: Source) -> None:
    before = datetime.now(UTC)
    await fill(bus, shared, 1, 3)
    async with Feed(source, 2) as feed:
        delivered: list[Message] = await feed.batch(5)
    found = await source.message(2)
    assert found is not None
    assert (found.seq, found.at, found.digest) == (2, delivered[0].at, delivered[0].digest)
    assert await source.message(4) is None
    assert await source.first_since(before - timedelta(hours=1)) == 1
    assert await source.first_since(datetime.now(UTC) + timedelta(hours=1)) is None


async def test_purging_keeps_what_is_not_below(shared: Server, bus: Bus, source: Source) -> None:
    await fill(bus, shared, 1, 5)
    await source.purge_below(4)
    extent = await source.extent()
    assert (extent.first, extent.last) == (4, 5)
    async with Feed(source, 1) as feed:
        assert await collect(feed, 2) == [4, 5]
