"""The smallest chaos test: a worker is killed amid its tasks, another one finishes them."""

from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    submit_many,
    until,
    wait_all_final,
)


async def test_a_kill_loses_nothing_and_repeats_no_effect(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, service=service) as worker:
        tasks = await submit_many(shared, "effects10", 20)
        await until(shared, "select count(*) > 60 from outlive.step")
        await worker.restart()
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        await assert_effects_once(service, 200)
