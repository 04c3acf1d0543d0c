"""Branches that race each other, killed at any moment: the same places, the same results, every effect once."""

import asyncio
from random import Random

import pytest

from outlive.actors.testing import FakeService, Server
from tests.actors.scene import rows
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    submit_many,
    until,
    wait_all_final,
)

LEAVES = ("1-1-1-1", "1-1-1-2", "1-2-1-1", "1-2-1-2", "1-2-1-3", "1-3")
PLACES = sorted(
    [f"{leaf}-{n}" for leaf in LEAVES for n in (1, 2)]
    + [f"1-{limb}-{n}" for limb in (1, 2) for n in (2, 3, 4)]
    + [str(n) for n in range(2, 6)]
)


@pytest.mark.parametrize("seeds", [8, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_killed_at_every_point(shared: Server, service: FakeService, seeds: int) -> None:
    random = Random(seeds)
    often = {"OUTLIVE_RESTART_INTENSITY": "100"}  # no task is to blame for these deaths
    async with WorkerProcess(shared, "tests.guarantees.values:app", service=service, environment=often) as worker:
        tasks: list[str] = []
        for seed in range(seeds):
            tasks += await submit_many(shared, "branches", 1, {"seed": seed}, name=f"seed-{seed}")
        most = seeds * (len(PLACES) - 8)  # the last ones come so close together that the end may win
        for share in (0.1, 0.3, 0.5, 0.7, 0.9) if seeds > 8 else (0.2, 0.5, 0.8):
            begun = int(most * share * random.uniform(0.8, 1.2))
            await until(shared, "select count(*) >= $1::int from outlive.step", begun)
            await asyncio.sleep(random.uniform(0, 0.02))
            await worker.restart()
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
    done = "select step_id, count(*) from fact where task_id = $1 and type = 'step' and status = 'completed' group by 1"
    for task in tasks:
        assert {row["step_id"]: row["count"] for row in await rows(shared, done, task)} == dict.fromkeys(PLACES, 1)
    results = await rows(shared, "select distinct body from fact where type = 'status' and status = 'succeeded'")
    assert len(results) == 1
    await assert_effects_once(service, seeds * len(LEAVES))
