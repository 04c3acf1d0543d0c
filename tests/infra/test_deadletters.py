from collections.abc import AsyncIterator

import pytest

from outlive.actors.testing import Server
from outlive.infra import deadletters
from outlive.infra.bus import InvalidSubject
from outlive.infra.database import Pool
from outlive.infra.deadletters import NoSuchLetter
from tests.infra.ingesting import Bench, bench

POISON = b'{"type": "submit", "kind": "k", "input": {"word": "poison"}, "command_id": "c1"}'


@pytest.fixture(name="own")
async def own_bench(shared: Server) -> AsyncIterator[Bench]:
    async with bench(shared) as opened:
        yield opened


@pytest.fixture
async def pool(shared: Server) -> AsyncIterator[Pool]:
    async with Pool(shared.postgres_dsn, application_name="test", size=2) as opened:
        yield opened


async def test_a_letter_that_is_requeued_is_read_again(own: Bench, pool: Pool) -> None:
    await own.connection.execute("alter table task add constraint poison check (input not like '%poison%'::bytea)")
    async with own.ingester():
        await own.send("t1", POISON, verb="submit", headers={"Nats-Msg-Id": "x", "Nats-Expected-Last-Sequence": "0"})
        assert (await own.heard("c1"))["code"] == "invalid"
        await own.connection.execute("alter table task drop constraint poison")
        own.answers.clear()
        (number,) = (await own.fetch("select id from dead_letter"))[0]
        assert await deadletters.requeue(pool, own.bus, "default", number, by="ann") == 2
        assert (await own.heard("c1"))["code"] == "applied"
        with pytest.raises(NoSuchLetter, match=f"no open dead letter {number}"):
            await deadletters.requeue(pool, own.bus, "default", number, by="ann")
    assert await own.fetch("select resolution, resolved_at is not null from dead_letter") == [("requeued as 2", True)]
    assert await own.fetch("select who, what, detail like '%submit: requeued as 2' from audit") == [
        ("ann", "requeue", True)
    ]


async def test_a_letter_that_is_not_sent_stays_open(own: Bench, pool: Pool) -> None:
    subject = f"{own.subjects.prefix}.default.cmd.t1.pause.{'long' * 17}"
    await own.bus.nc.jetstream().publish(subject, b"{}")
    async with own.ingester():
        await own.settled()
        (number,) = (await own.fetch("select id from dead_letter"))[0]
        with pytest.raises(InvalidSubject):
            await deadletters.requeue(pool, own.bus, "default", number, by="ann")
    assert await own.fetch("select count(*) from dead_letter where resolved_at is null") == [(1,)]


async def test_a_letter_is_dropped_once(own: Bench, pool: Pool) -> None:
    await own.send("t1", b"nonsense")
    async with own.ingester():
        await own.settled()
    (number,) = (await own.fetch("select id from dead_letter"))[0]
    with pytest.raises(NoSuchLetter):
        await deadletters.drop(pool, "other", number, by="ann")
    await deadletters.drop(pool, "default", number, by="ann", reason="a test")
    with pytest.raises(NoSuchLetter):
        await deadletters.drop(pool, "default", number, by="ann")
    assert await own.fetch("select resolution, body from dead_letter") == [("dropped: a test", b"nonsense")]
    assert await own.fetch("select who, what from audit") == [("ann", "drop")]
