import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from outlive.actors.testing import Server, virtual_time
from outlive.infra import database
from outlive.infra.clock import Clock, boottime


async def test_time_passes_when_told_for_the_database_and_for_python(shared: Server) -> None:
    clock = Clock()
    async with virtual_time(shared.postgres_dsn, clock) as time:
        before = await time.now()
        after = await time.advance(3600)
        assert timedelta(hours=1) <= after - before < timedelta(hours=1, seconds=10)
        assert abs(await _now(shared) - clock.now()) < timedelta(seconds=1)
        assert clock.now() - before > timedelta(minutes=59)
    assert abs(await _now(shared) - datetime.now(UTC)) < timedelta(seconds=5)
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=5)


async def test_a_timer_is_due_after_the_jump_and_a_lease_is_not_over(shared: Server) -> None:
    connection: Any = await database.connect(shared.postgres_dsn, application_name="test")
    await connection.execute(
        "insert into task (tenant, task_id, kind, digest, input, due_at)"
        " values ('t', '1', 'k', '', '', outlive.clock() + interval '1 day')"
    )
    await connection.execute(
        "insert into worker (incarnation, server_started, until, host, pid, version, protocol, kinds, slots)"
        " values ($1, outlive.clock(), outlive.clock() + interval '10 s', '', 1, '', 1, '{k}', 1)",
        uuid.uuid4(),
    )
    query = (
        "select (select due_at <= (select outlive.clock()) from task),"
        " (select extract(epoch from until - outlive.clock())::float8 from worker)"
    )
    async with virtual_time(shared.postgres_dsn) as time:
        due, left = await connection.fetchrow(query)
        assert not due and left < 10
        await time.advance(86_401)
        due, left = await connection.fetchrow(query)
        assert due and 0 < left < 10
    _, left = await connection.fetchrow(query)
    assert 0 < left < 10
    await connection.close()


async def test_no_renewed_lease_is_over_after_a_jump(shared: Server) -> None:
    """A heartbeat that races with the jump must not write a lease of the time before it."""
    me = uuid.uuid4()
    connection: Any = await database.connect(shared.postgres_dsn, application_name="test")
    await connection.execute(
        "insert into worker (incarnation, server_started, until, host, pid, version, protocol, kinds, slots)"
        " values ($1, outlive.clock(), outlive.clock() + interval '10 s', '', 1, '', 1, '{}', 1)",
        me,
    )
    lefts: list[float] = []
    done = asyncio.Event()

    async def beat() -> None:
        while not done.is_set():
            await connection.execute(
                "update worker set until = outlive.clock() + interval '10 s' where incarnation = $1", me
            )

    async with virtual_time(shared.postgres_dsn) as time, asyncio.TaskGroup() as group:
        group.create_task(beat())
        observer: Any = await asyncpg.connect(shared.postgres_dsn)
        for _ in range(30):
            await time.advance(3600)
            query = "select extract(epoch from until - outlive.clock())::float8 from outlive_store.worker"
            lefts.append(await observer.fetchval(query))
        done.set()
        await observer.close()
    await connection.close()
    assert all(9 < left <= 10.5 for left in lefts), lefts


async def test_a_jump_waits_for_whoever_has_locked_a_row_and_will_write_it(shared: Server) -> None:
    """As the ingester does: it locks the cursor's row first, and writes it later in the transaction."""
    waiting = "select 1 from pg_locks where not granted and database = (select oid from pg_database where datname = current_database())"
    ingester: Any = await asyncpg.connect(shared.postgres_dsn)
    observer: Any = await asyncpg.connect(shared.postgres_dsn)
    await ingester.execute("insert into outlive_store.cursor (stream) values ('s')")
    async with virtual_time(shared.postgres_dsn) as time, asyncio.TaskGroup() as group:
        async with ingester.transaction():
            await ingester.execute("select 1 from outlive_store.cursor where stream = 's' for update")
            jump = group.create_task(time.advance(60))
            while not await observer.fetchval(waiting):  # noqa: ASYNC110  # a table tells no event
                await asyncio.sleep(0.01)
            await ingester.execute("update outlive_store.cursor set seq = 1 where stream = 's'")
        await jump
    await ingester.close()
    await observer.close()


async def test_time_does_not_go_back(shared: Server) -> None:
    async with virtual_time(shared.postgres_dsn) as time:
        with pytest.raises(ValueError, match="go back"):
            await time.advance(-1)


async def _now(server: Server) -> datetime:
    connection: Any = await asyncpg.connect(server.postgres_dsn)
    try:
        now: datetime = await connection.fetchval("select outlive.clock()")
        return now
    finally:
        await connection.close()


def test_a_clock_of_another_process_follows_the_jump_with_a_worse_reading() -> None:
    clock, start = Clock(), datetime(2030, 1, 1, tzinfo=UTC)
    clock.observe(start, boottime(), boottime())
    clock.observe(start + timedelta(days=1), boottime() - 0.2, boottime())
    assert timedelta(0) <= clock.now() - start - timedelta(days=1) < timedelta(seconds=5)
