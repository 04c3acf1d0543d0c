"""The pool under bad conditions: timed-out acquires, cancelled statements, a server that says nothing."""

import asyncio
import time

import pytest

from outlive.actors.testing import Server
from outlive.infra import database
from tests.infra.proxy import Proxy


async def _all_usable(pool: database.Pool, size: int) -> None:
    """Every connection of the pool answers, all at once."""
    async with asyncio.timeout(10):
        pids = await asyncio.gather(*(pool.fetchval("select pg_backend_pid() from pg_sleep(0.1)") for _ in range(size)))
    assert len(set(pids)) == size


async def test_acquires_that_time_out_leak_no_connection(shared: Server) -> None:
    # Without TLS's first question: asyncpg forgets its answer when it is cancelled there, and asyncio complains.
    dsn = f"{shared.postgres_dsn}?sslmode=disable"
    async with database.Pool(dsn, application_name="x", size=3) as pool:

        async def impatient(n: int) -> None:
            try:
                async with asyncio.timeout(0.001 * (n % 7)):
                    await pool.fetchval("select 1")
            except TimeoutError:
                pass

        for _ in range(5):
            await asyncio.gather(*(impatient(n) for n in range(200)))
        await _all_usable(pool, 3)


async def test_a_cancelled_statement_whose_server_says_nothing_ends_within_a_bound(
    shared: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CONNECT_TIMEOUT", 1.0)
    async with (
        Proxy(shared.postgres_dsn) as proxy,
        database.Pool(proxy.url, application_name="x", size=2) as pool,
    ):
        await pool.fetchval("select 1")
        proxy.answers_left = 0
        begun = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await pool.fetchval("select pg_sleep(30)")
        assert time.monotonic() - begun < 15, "not after the 30 s of the query"
        proxy.answers_left = None
        await _all_usable(pool, 2)
