"""Who is dead, and who may say so."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from outlive.actors.testing import Server
from outlive.infra import database, sql
from outlive.infra.clock import Clock
from outlive.infra.liveness import LOCK_CLASS, Coroner, Heartbeat

LEASE = 0.9


@pytest.fixture
async def pool(shared: Server) -> AsyncIterator[database.Pool]:
    async with database.Pool(shared.postgres_dsn, application_name="x", size=4) as opened:
        yield opened


async def _worker(pool: database.Pool, seconds: float) -> uuid.UUID:
    """A worker's row with so much lease left; nothing holds its lock, and its server was another one."""
    incarnation = uuid.uuid4()
    await pool.execute(
        "insert into worker (incarnation, server_started, until, host, pid, version, protocol, kinds, slots) values"
        " ($1, 'epoch', clock_timestamp() + make_interval(secs => $2), '', 0, '', 1, '{}', 1)",
        incarnation, seconds,
    )  # fmt: skip
    return incarnation


async def _watch(coroner: Coroner, seconds: float) -> list[dict[uuid.UUID, str]]:
    """Look again and again; what was found."""
    found: list[dict[uuid.UUID, str]] = []
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        if dead := await coroner.dead():
            found.append(dead)
        await asyncio.sleep(0.02)
    return found


async def test_an_expired_lease_counts_after_a_lease_of_steady_contact(pool: database.Pool) -> None:
    me, other = await _worker(pool, 60), await _worker(pool, -1)
    coroner = Coroner(pool, me, lease=LEASE)
    assert await _watch(coroner, LEASE * 0.7) == []
    await asyncio.sleep(LEASE / 2)  # it did not look for a while: it begins anew
    assert await _watch(coroner, LEASE * 0.7) == []
    assert (await _watch(coroner, LEASE))[0] == {other: "lease expired"}


async def test_who_has_no_lease_or_was_declared_dead_declares_nobody_dead(pool: database.Pool) -> None:
    late, fenced, other = await _worker(pool, -1), await _worker(pool, 60), await _worker(pool, -1)
    await pool.execute("update worker set fenced = true where incarnation = $1", fenced)
    assert await _watch(Coroner(pool, late, lease=LEASE), 2 * LEASE) == []
    assert await _watch(Coroner(pool, fenced, lease=LEASE), 2 * LEASE) == []
    assert await pool.fetchval("select fenced from worker where incarnation = $1", other) is False


async def test_two_never_fence_each_other(pool: database.Pool) -> None:
    """Each has a lease when it looks and finds the other dead; one of them is first."""
    for _ in range(20):
        pair = [await _worker(pool, 60), await _worker(pool, 60)]
        fence = sql.load("liveness")["fence"]
        await asyncio.gather(pool.fetch(fence, pair[0], pair[1:]), pool.fetch(fence, pair[1], pair[:1]))
        assert await pool.fetchval("select count(*) from worker where fenced and incarnation = any($1)", pair) == 1


async def test_a_heartbeat_does_not_wait_for_a_lock_that_its_former_session_holds(
    shared: Server, pool: database.Pool
) -> None:
    """The server may take a cut session for alive for a while; the lease must not run out meanwhile."""

    def report() -> tuple[int, bool, dict[str, Any]]:
        return 0, False, {}

    beat = Heartbeat(
        shared.postgres_dsn, uuid.uuid4(), Clock(), lease=LEASE, period=0.1, version="", kinds=[], slots=1, report=report
    )  # fmt: skip
    async with pool.acquire() as former, asyncio.TaskGroup() as group:
        await former.execute("select pg_advisory_lock($1, 1)", LOCK_CLASS)
        running = group.create_task(beat.run())
        await asyncio.sleep(2 * LEASE)
        assert beat.covered > LEASE / 2
        held = "select count(*) from pg_locks where locktype = 'advisory' and classid = $1::bigint::oid"
        assert await pool.fetchval(f"{held} and pid <> $2", LOCK_CLASS, former.get_server_pid()) == 0
        await former.execute("select pg_advisory_unlock($1, 1)", LOCK_CLASS)
        await asyncio.sleep(0.5)
        assert await pool.fetchval(held, LOCK_CLASS) == 1
        running.cancel()
