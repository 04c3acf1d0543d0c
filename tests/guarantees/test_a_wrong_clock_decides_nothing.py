"""Timers, leases and times of events follow the database's clock, whatever a worker's wall clock says or does."""

import os
import signal
from datetime import timedelta

import pytest

from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import WorkerProcess, assert_effects_once, fetch, submit_many, until, wait_all_final

SLEPT = """
select min(at) filter (where status = 'waiting') as began, min(at) filter (where status = 'completed') as ended
  from outlive.step where name = 'sleep'
"""


@pytest.mark.parametrize("skew", ["-60", "60"])
async def test_a_sleep_ends_once_and_on_time_by_the_database(shared: Server, service: FakeService, skew: str) -> None:
    # linger 0: the timer is a row, and the wake-up a claim.
    environment = {"CHAOS_SKEW": skew, "OUTLIVE_LINGER": "0"}
    async with WorkerProcess(shared, service=service, environment=environment):
        tasks = await submit_many(shared, "sleeper", 3, {"seconds": 1.5})
        await wait_all_final(shared, tasks)
        (slept,) = await fetch(shared, SLEPT)
        assert timedelta(seconds=1.5) <= slept["ended"] - slept["began"] < timedelta(seconds=20)
        await assert_effects_once(service, 3)


async def test_a_clock_set_back_by_an_hour_stops_nothing(shared: Server, service: FakeService) -> None:
    environment = {"OUTLIVE_LINGER": "0", "OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}
    async with WorkerProcess(shared, service=service, environment=environment) as worker:
        tasks = [
            *await submit_many(shared, "sleeper", 3, {"seconds": 1.0}),
            *await submit_many(shared, "steps10", 3, {"seconds": 0.2}),
        ]
        await until(shared, "select count(*) >= 3 from outlive.step where status = 'waiting'")
        os.kill(worker.pid, signal.SIGUSR1)
        await wait_all_final(shared, tasks)
        assert worker.alive
        backwards = await fetch(
            shared,
            "select 1 from outlive.step a join outlive.step b on (a.tenant, a.task_id) = (b.tenant, b.task_id)"
            " where a.seq < b.seq and a.at > b.at",
        )
        assert not backwards
        assert not await fetch(shared, "select 1 from outlive.step where took < 0")
