"""Servers may be killed and come back while tasks run: everything finishes without an operator, nothing moves, nothing
happens twice."""

import asyncio
import random
from typing import Final

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.embedded.server import Server as Embedded
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    frozen,
    submit_many,
    until,
    wait_all_final,
)

HOSTILE: Final = "tests.chaos.hostile:app"
STEPS_PER_TASK: Final = 5
"""Effects of one task of the kind ``mixed``."""


@pytest.mark.parametrize("which", ["nats", "postgres"])
async def test_tasks_outlive_a_server_that_is_killed_and_comes_back(
    server: Server, service: FakeService, which: str
) -> None:
    await _outlive(server, service, which, tasks=60, outages=3)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("which", ["nats", "postgres"])
async def test_500_tasks_outlive_a_server_that_is_killed_ten_times(
    server: Server, service: FakeService, which: str
) -> None:
    await _outlive(server, service, which, tasks=500, outages=10)


async def _outlive(server: Server, service: FakeService, which: str, *, tasks: int, outages: int) -> None:
    broken = _embedded(server, which)
    async with WorkerProcess(server, service=service) as one, WorkerProcess(server, service=service) as two:
        names = await submit_many(server, "mixed", tasks, {"seconds": 0.1})
        await until(server, "select count(*) > 10 from outlive.step")
        for _ in range(outages):
            await _outage(broken, random.choice((0, 0.3, 1.5)))
            await asyncio.sleep(random.uniform(0.1, 0.6))
        await wait_all_final(server, names, within=120 + tasks / 4)
        await assert_progress_gapless(server, names)
        await assert_effects_once(service, tasks * STEPS_PER_TASK)
        assert one.alive and two.alive
        moved = await fetch(server, "select count(*) from outlive_store.task where epoch > 1")
        assert moved[0][0] == 0, "an outage of a server moves no task"


async def _outage(broken: Embedded, seconds: float) -> None:
    broken.kill()
    await asyncio.sleep(seconds)
    await broken.start()


def _embedded(server: Server, which: str) -> Embedded:
    if server.pair is None:
        pytest.skip("these servers are not ours to kill")
    return server.pair.nats if which == "nats" else server.pair.postgres


@pytest.mark.slow
async def test_a_postgres_that_stands_still_for_longer_than_a_lease_fences_nobody(
    server: Server, service: FakeService
) -> None:
    """Nobody could renew anything: whoever looks first must not take the others for dead."""
    broken = _embedded(server, "postgres")
    server = server.with_settings(lease=3.0, heartbeat=0.3)
    async with WorkerProcess(server, service=service) as one, WorkerProcess(server, service=service) as two:
        tasks = await submit_many(server, "mixed", 10, {"seconds": 0.3})
        await until(server, "select count(*) > 10 from outlive.step")
        assert broken.pid is not None
        with frozen(broken.pid):
            await asyncio.sleep(4.0)
        await wait_all_final(server, tasks)
        await assert_progress_gapless(server, tasks)
        await assert_effects_once(service, 50)
        assert one.alive and two.alive
        moved = await fetch(server, "select count(*) from outlive_store.task where epoch > 1")
        assert moved[0][0] == 0


async def test_commands_sent_while_no_worker_runs_are_kept(shared: Server) -> None:
    """Nothing of a worker has to exist for a command to be stored."""
    async with WorkerProcess(shared) as worker:
        worker.terminate()
        assert await worker.exited() == 0
        tasks = await submit_many(shared, "steps10", 100)
        await worker.start()
        await worker.ready()
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)


async def test_a_lease_is_kept_through_postgres_while_nats_is_away(server: Server, service: FakeService) -> None:
    """NATS is down for longer than a lease, amid a step that lasts as long: no second execution."""
    nats = _embedded(server, "nats")
    short = {"OUTLIVE_LEASE": "1.5", "OUTLIVE_HEARTBEAT": "0.3"}
    async with (
        WorkerProcess(server, HOSTILE, service=service, environment=short) as one,
        WorkerProcess(server, HOSTILE, service=service, environment=short) as two,
    ):
        tasks = await submit_many(server, "slow_effect", 8, {"seconds": 3.5})
        await until(server, "select count(*) = 8 from outlive_store.operation")
        nats.kill()
        await asyncio.sleep(3.0)
        await nats.start()
        await wait_all_final(server, tasks)
        await assert_progress_gapless(server, tasks)
        await assert_effects_once(service, 8)
        assert one.alive and two.alive
        again = await fetch(server, "select task_id from outlive_store.operation where epoch > 1 or attempt > 1")
        assert not again, "nothing was executed a second time"
