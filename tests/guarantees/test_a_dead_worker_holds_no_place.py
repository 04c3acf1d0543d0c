"""One task at a time: the one whose worker died goes on, and those behind it get their turn."""

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


async def test_the_queue_drains(shared: Server, service: FakeService) -> None:
    """Killed between the commit of a step and the start of the next, which had not begun anywhere."""
    alone = {"OUTLIVE_SLOTS": "1"}
    async with WorkerProcess(
        shared, service=service, environment=alone, failpoints="outcome.after_commit=kill@2"
    ) as worker:
        tasks = await submit_many(shared, "effects10", 4)
        assert await worker.exited() == -9
        [died] = await fetch(shared, "select task_id, steps from outlive.task where owner is not null")
        assert died["steps"] == 2
        await worker.restart()
        await until(shared, "select count(*) > 2 from outlive.step where task_id = $1", died["task_id"], within=5)
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        await assert_effects_once(service, 40)
