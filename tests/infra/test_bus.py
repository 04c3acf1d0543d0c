import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from outlive.actors.testing import Server
from outlive.infra import bus as module
from outlive.infra.bus import (
    Ack,
    Bus,
    Disconnected,
    InvalidSubject,
    NoResponders,
    PublishTimeout,
    RequestTimeout,
    TooLarge,
    WrongLastSequence,
)


@pytest.fixture
async def bus(shared: Server) -> AsyncIterator[Bus]:
    async with Bus.of(shared.settings, name="test") as bus:
        yield bus


@pytest.fixture
def subject(shared: Server) -> str:
    return shared.subjects.progress("default", "t1")


async def _eventually(bus: Bus, generation: int) -> None:
    async with asyncio.timeout(10):
        while bus.generation == generation or not bus.connected:  # noqa: ASYNC110  # the bus tells no event of it
            await asyncio.sleep(0.01)


async def test_each_publish_gets_its_own_ack(bus: Bus, subject: str) -> None:
    acks = await asyncio.gather(*(bus.publish_tracked(subject, b"%d" % n) for n in range(500)))
    assert [ack.seq for ack in acks] == list(range(1, 501))
    assert not any(ack.duplicate for ack in acks)


async def test_a_repeated_id_is_acknowledged_as_duplicate(bus: Bus, subject: str) -> None:
    first = await bus.publish_tracked(subject, b"x", {"Nats-Msg-Id": "a"})
    again = await bus.publish_tracked(subject, b"x", {"Nats-Msg-Id": "a"})
    assert (first.seq, first.duplicate, again.seq, again.duplicate) == (1, False, 1, True)


async def test_wrong_last_sequence_has_its_own_error(bus: Bus, subject: str) -> None:
    await bus.publish_tracked(subject, b"x")
    with pytest.raises(WrongLastSequence) as caught:
        await bus.publish_tracked(subject, b"x", {"Nats-Expected-Last-Subject-Sequence": "7"})
    assert caught.value.err_code == 10071


async def test_a_subject_without_a_stream_is_not_stored(bus: Bus) -> None:
    with pytest.raises(NoResponders, match="nothing was stored"):
        await bus.publish_tracked("nobody.listens", b"x")


async def test_too_large_is_refused_before_it_costs_the_connection(bus: Bus, subject: str) -> None:
    body = b"x" * bus.nc.max_payload
    with pytest.raises(TooLarge, match=r"at most 1,048,576"):
        await bus.publish_tracked(subject, body, {"Nats-Msg-Id": "a"})
    with pytest.raises(TooLarge):
        await bus.publish(subject, body + b"x")
    with pytest.raises(TooLarge):
        await bus.request(subject, body + b"x")
    assert (await bus.publish_tracked(subject, body[:-100])).seq == 1
    assert bus.generation == 0


@pytest.mark.parametrize("subject", ["", "a b", "a..b", "a.*", "a.>", "a\r\nPING", "é", "a" * 65, ".a"])
async def test_subjects_that_break_the_protocol_are_refused(bus: Bus, subject: str) -> None:
    with pytest.raises(InvalidSubject):
        bus.publish_tracked(subject, b"x")
    with pytest.raises(InvalidSubject):
        await bus.publish(subject, b"x")


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nc: d"}, {"": "x"}, {"a:b": "x"}])
async def test_headers_that_break_the_protocol_are_refused(bus: Bus, subject: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidSubject):
        bus.publish_tracked(subject, b"x", headers)


async def test_an_ack_that_never_comes_is_unknown(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ACK_TIMEOUT", 0.1)
    await bus.subscribe("somebody.listens", _ignore)
    with pytest.raises(PublishTimeout, match="may be in the stream"):
        await bus.publish_tracked("somebody.listens", b"x")


async def test_requests_name_what_went_wrong(bus: Bus) -> None:
    await bus.subscribe("silent", _ignore)
    with pytest.raises(NoResponders):
        await bus.request("nobody.serves")
    with pytest.raises(RequestTimeout, match=r"no answer on silent within 0\.1 s"):
        await bus.request("silent", timeout=0.1)


@pytest.mark.parametrize("what", ["subscribe", "request"])
async def test_whoever_is_cancelled_ends_whatever_it_waits_for(bus: Bus, what: str) -> None:
    """Cancelled after 0, 1, 2, ... rounds of the event loop, until what it does is done before that."""
    cancelled, done = 0, 0
    while done < 20:
        doing = asyncio.ensure_future(bus.subscribe("cancelled", _hear) if what == "subscribe" else bus.api("INFO"))
        for _ in range(cancelled):
            await asyncio.sleep(0)
        if doing.done():
            done += 1
            continue
        doing.cancel()
        await asyncio.wait([doing], timeout=5)
        assert doing.cancelled(), f"after {cancelled} rounds it went on"
        cancelled += 1
    assert cancelled > 1


async def _hear(_: Msg) -> None:
    """Whatever it is."""


async def test_messages_with_and_without_headers_arrive(bus: Bus) -> None:
    got: asyncio.Queue[Msg] = asyncio.Queue()
    await bus.subscribe("news.*", got.put)
    await bus.publish("news.a", b"1")
    await bus.publish("news.b", b"", {"Kind": "empty"})
    first, second = await got.get(), await got.get()
    assert (first.subject, first.data, first.headers) == ("news.a", b"1", None)
    assert (second.subject, second.data, second.headers) == ("news.b", b"", {"Kind": "empty"})


async def test_unsubscribe_ends_it_for_good(bus: Bus) -> None:
    got: list[Msg] = []

    async def keep(message: Msg) -> None:
        got.append(message)

    subscription = await bus.subscribe("news", keep)
    await subscription.unsubscribe()
    await bus.publish("news", b"1")
    await bus.nc.flush()
    await _break_protocol(bus)
    await bus.publish("news", b"2")
    await bus.nc.flush()
    assert not got


async def test_a_client_closed_by_the_server_is_replaced_with_all_subscriptions(bus: Bus, subject: str) -> None:
    got: asyncio.Queue[Msg] = asyncio.Queue()
    clients: list[Client] = []

    async def note(client: Client) -> None:
        clients.append(client)

    await bus.attach(note)
    await bus.subscribe("news", got.put)
    await _break_protocol(bus)
    assert clients == [clients[0], bus.nc]
    await bus.publish("news", b"again")
    assert (await got.get()).data == b"again"
    assert isinstance(await bus.publish_tracked(subject, b"x"), Ack)


async def test_a_client_that_hangs_while_reconnecting_is_replaced(
    bus: Bus, subject: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_STUCK", 0.2)
    generation, former = bus.generation, bus.nc
    former._status = Client.RECONNECTING
    await _eventually(bus, generation)
    assert bus.nc is not former
    assert (await bus.publish_tracked(subject, b"x")).seq == 1


async def test_a_killed_server_leaves_unknown_then_not_sent_then_works_again(server: Server) -> None:
    assert server.pair is not None
    subject = server.subjects.progress("default", "t1")
    got: asyncio.Queue[Msg] = asyncio.Queue()
    async with Bus.of(server.settings) as bus:
        await bus.subscribe("news", got.put)
        server.pair.nats.kill()
        flight = bus.publish_tracked(subject, b"x")
        with pytest.raises(PublishTimeout, match="cut before the ack"):
            await flight
        with pytest.raises(Disconnected):
            bus.publish_tracked(subject, b"x")
        with pytest.raises(Disconnected):
            await bus.request(subject, timeout=0.05)
        await server.pair.nats.start()
        await bus.wait_connected(5)
        assert bus.generation == 1
        await bus.publish("news", b"1")
        await got.get()
        seq = (await bus.publish_tracked(subject, b"y")).seq
        assert seq in {1, 2}  # the unknown one is there, or not


async def test_nobody_there_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECT_TIMEOUT", 0.3)
    with pytest.raises(Disconnected, match=r"no connection to NATS at 127\.0\.0\.1:1: .*Is the server up"):
        async with Bus("nats://secret@127.0.0.1:1"):
            pass


async def test_a_wrong_token_is_told_at_once(shared: Server) -> None:
    began = time.monotonic()
    url = "nats://wrong@" + shared.nats_url.rpartition("@")[2]
    with pytest.raises(Disconnected, match=r"(?i)authorization"):
        async with Bus(url):
            pass
    assert time.monotonic() - began < 4.5, "it went on trying"


async def _break_protocol(bus: Bus) -> None:
    generation = bus.generation
    assert bus.nc._transport is not None
    bus.nc._transport.write(b"PUB too.large 99999999\r\n")  # -ERR: nats-py closes for good
    await _eventually(bus, generation)


async def _ignore(_: Msg) -> None:
    pass
