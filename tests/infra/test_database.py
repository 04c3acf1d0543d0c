"""Connections and the pool."""

import anyio
import asyncpg
import pytest

from outlive.actors.testing import Server
from outlive.infra import database
from outlive.infra.clock import Clock


async def test_a_connection_has_our_settings(shared: Server) -> None:
    connection = await database.connect(shared.postgres_dsn, application_name="outlive:x", lock_timeout="3s")
    for name, value in {
        "search_path": "outlive_store",
        "application_name": "outlive:x",
        "lock_timeout": "3s",
        "idle_in_transaction_session_timeout": "10s",
        "plan_cache_mode": "auto",
        "TimeZone": "UTC",
    }.items():
        assert await connection.fetchval(f"show {name}") == value
    await connection.close()


async def test_a_journal_connection_plans_for_the_batch(shared: Server) -> None:
    connection = await database.connect(shared.postgres_dsn, application_name="x", journal=True)
    for name, value in database.JOURNAL_SETTINGS.items():
        assert await connection.fetchval(f"show {name}") == value
    assert await connection.fetchval("show enable_hashjoin") == "on"
    await connection.close()


async def test_the_clock_is_set_by_the_database(shared: Server) -> None:
    connection = await database.connect(shared.postgres_dsn, application_name="x")
    await connection.execute(
        "create or replace function outlive.clock() returns timestamptz language sql stable "
        "as $$select clock_timestamp() + interval '1 year'$$"
    )
    clock = Clock()
    await database.synchronise(clock, connection)
    assert (clock.now() - Clock().now()).days in (365, 366)
    assert clock.error < 1
    await connection.close()


async def test_a_busy_pool_says_so(shared: Server) -> None:
    async with database.Pool(shared.postgres_dsn, application_name="x", size=1, wait=0.5) as pool:
        assert await pool.fetchval("select 1") == 1
        async with pool.acquire():
            with pytest.raises(database.PoolExhausted, match=r"all 1 database connections were in use for 0\.5 s"):
                await pool.fetchval("select 1")
        assert (await pool.fetchrow("select 2 as n")) is not None
        assert [row["n"] for row in await pool.fetch("select 3 as n")] == [3]
        assert await pool.execute("select 1") == "SELECT 1"


async def test_a_transaction_left_open_does_not_reach_the_next_borrower(shared: Server) -> None:
    async with database.Pool(shared.postgres_dsn, application_name="x", size=1) as pool:
        async with pool.acquire() as connection:
            await connection.execute("begin")
        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()


async def test_a_restart_of_the_server_is_transient(server: Server) -> None:
    if server.pair is None:
        pytest.skip("these servers are not ours to kill")
    async with database.Pool(server.postgres_dsn, application_name="x", size=2) as pool:
        await pool.fetchval("select 1")
        server.pair.postgres.kill()
        for _ in range(2):  # the connection that was open, and a new one
            with pytest.raises(database.TRANSIENT):
                await pool.fetchval("select 1")
        await server.pair.postgres.start()
        assert await pool.fetchval("select 1") == 1


async def test_a_slow_statement_is_transient_and_a_wrong_one_is_not(shared: Server) -> None:
    connection = await database.connect(shared.postgres_dsn, application_name="x", statement_timeout="20ms")
    with pytest.raises(database.TRANSIENT):
        await connection.execute("select pg_sleep(5)")
    for statement, argument in (("select $1::int", "x"), ("select $1::text", "\ud800"), ("select $1::text", "\0")):
        with pytest.raises(asyncpg.DataError) as caught:
            await connection.fetchval(statement, argument)
        assert not isinstance(caught.value, database.TRANSIENT)
    await connection.close()


async def test_a_terminated_backend_is_transient(shared: Server) -> None:
    connection = await database.connect(shared.postgres_dsn, application_name="x")
    other = await database.connect(shared.postgres_dsn, application_name="x")
    await other.execute("select pg_terminate_backend($1)", connection.get_server_pid())
    while not connection.is_closed():  # noqa: ASYNC110  # the news travels through the socket
        await anyio.sleep(0.01)
    with pytest.raises(database.TRANSIENT):
        await connection.fetchval("select 1")
    await other.close()
