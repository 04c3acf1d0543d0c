"""Every worker loses all its connections at once, and yet none of them is taken for dead."""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Mapping

import asyncpg
import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra import database, sql
from outlive.infra.liveness import Coroner
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    submit_many,
    until,
    wait_all_final,
)


async def _restart(server: Server) -> None:
    """The administrator restarts it."""
    assert server.pair is not None
    await server.pair.postgres.restart()


async def _lose_a_backend(server: Server) -> None:
    """One of its processes dies: the server ends all sessions and recovers, without being started anew."""
    connection = await asyncpg.connect(server.postgres_dsn)
    os.kill(await connection.fetchval("select pg_backend_pid()"), signal.SIGKILL)
    connection.terminate()
    while True:
        with contextlib.suppress(asyncpg.CannotConnectNowError, asyncpg.PostgresConnectionError, OSError):
            await (await asyncpg.connect(server.postgres_dsn)).close()
            return
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("disturb", [_restart, _lose_a_backend], ids=["restart", "recovery"])
async def test_tasks_stay_where_they_are(
    server: Server, service: FakeService, disturb: Callable[[Server], Awaitable[None]]
) -> None:
    async with WorkerProcess(server, service=service) as one, WorkerProcess(server, service=service) as other:
        tasks = await submit_many(server, "mixed", 40, {"seconds": 0.3})
        await until(server, "select count(*) >= 40 and count(distinct task_id) = 40 from outlive.step")
        for _ in range(2):
            await disturb(server)
            await asyncio.sleep(0.5)
        await wait_all_final(server, tasks)
        await assert_progress_gapless(server, tasks)
        await assert_effects_once(service, 40 * 5)
        moved = await fetch(server, "select task_id, epoch from outlive.task where epoch > 1")
        assert moved == [], f"{len(moved)} tasks were moved"
        assert one.alive and other.alive


async def test_a_worker_is_not_dead_because_the_server_lost_its_sessions(server: Server) -> None:
    """Known by the server's own word since when it keeps locks and sessions, so no pause is needed to be sure."""
    me, worker, statements = uuid.uuid4(), uuid.uuid4(), sql.load("liveness")

    async def seen() -> Mapping[uuid.UUID, str]:
        async with database.Pool(server.postgres_dsn, application_name="test", size=1) as pool:
            coroner = Coroner(pool, me, lease=10.0)
            await coroner.dead()
            return await coroner.dead()

    async def tell(name: str, worker: uuid.UUID, *arguments: object) -> None:
        async with database.Pool(server.postgres_dsn, application_name="test", size=1) as pool:
            await pool.execute(statements[name], worker, 10.0, *arguments)

    for incarnation in (me, worker):
        await tell("register", incarnation, "host", 1, "1", 1, ["k"], 10)
    await _lose_a_backend(server)
    assert await seen() == {}, "it has no session and no lock, but neither has anybody else"
    await tell("beat", worker, 0, False, "{}")
    assert await seen() == {worker: "process ended"}, "it was there after the recovery"


@pytest.mark.parametrize("tasks", [60, pytest.param(250, marks=pytest.mark.slow)])
async def test_a_restart_amid_a_take_over_strands_nothing(server: Server, service: FakeService, tasks: int) -> None:
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}  # the server forgot the death signal: the lease decides
    async with (
        WorkerProcess(server, service=service, environment=short) as lost,
        WorkerProcess(server, service=service, environment=short) as other,
    ):
        submitted = await submit_many(server, "mixed", tasks, {"seconds": 0.2})
        await until(server, "select count(*) > $1::int from outlive.step", tasks)
        lost.kill()
        await asyncio.sleep(0.2 if tasks > 100 else 0.07)
        await _restart(server)
        await wait_all_final(server, submitted, within=60)
        await assert_progress_gapless(server, submitted)
        await assert_effects_once(service, tasks * 5)
        assert other.alive
        assert await fetch(server, "select 1 from outlive.task where owner is not null") == []
