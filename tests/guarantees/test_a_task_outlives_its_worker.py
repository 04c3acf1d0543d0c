"""Two workers, one of them killed at random moments again and again: every task ends as if nothing had happened."""

import asyncio
import random

from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    submit_many,
    until,
    wait_all_final,
)

TASKS = 200
KILLS = 5


async def test_every_task_succeeds_once(shared: Server, service: FakeService) -> None:
    """Tasks of ten steps, half of them effects; the steps are slow enough that each kill finds some under way."""
    async with WorkerProcess(shared, service=service) as steady, WorkerProcess(shared, service=service) as killed:
        mixed = await submit_many(shared, "mixed", TASKS, {"seconds": 0.05})
        for n in range(1, KILLS + 1):
            some = TASKS * 10 * n // (KILLS + 2)
            await until(shared, "select count(*) >= $1::int from outlive.step where status = 'completed'", some)
            await asyncio.sleep(random.uniform(0, 0.05))
            await killed.restart()
        await wait_all_final(shared, mixed, within=120)
        assert steady.alive and killed.alive
        await assert_progress_gapless(shared, mixed)
        await assert_effects_once(service, TASKS * 5)
        await _everything_is_told(shared)


async def _everything_is_told(server: Server) -> None:
    """Steps are recorded once each, and nobody is left with a task."""
    [row] = await fetch(
        server,
        "select count(*) as steps, count(distinct (task_id, step_id)) as different from outlive.step where status = 'completed'",
    )
    assert row["steps"] == row["different"] == TASKS * 10
    statuses = await fetch(server, "select status, count(*) as n from outlive.operation group by 1")
    assert [tuple(row) for row in statuses] == [("succeeded", TASKS * 5)]
    left = "select count(*) as n from outlive_store.task where owner is not null or due_at is not null or mail_at is not null"
    assert [row["n"] for row in await fetch(server, left)] == [0]
