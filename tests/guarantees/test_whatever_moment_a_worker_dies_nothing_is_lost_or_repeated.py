"""A worker dies by SIGKILL at every point at which "done" and "recorded" can part; another one finishes its tasks."""

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra import failpoints
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    submit_many,
    wait_all_final,
)

AFTER = {
    "ingest.before_commit": 1,
    "ingest.after_commit": 1,
    "claim.before": 2,
    "claim.after": 1,
    "final.before_commit": 2,
}
"""At which hit the worker dies: with work behind it and before it. All others: at the fifth."""


async def _submit(server: Server) -> tuple[list[str], int]:
    """Tasks of three kinds, one with children; and how many effects they should have."""
    mixed = await submit_many(server, "mixed", 6)
    effects = await submit_many(server, "effects10", 2)
    parents = await submit_many(server, "parent", 1, {"children": 5})
    return mixed + effects + parents, 6 * 5 + 2 * 10 + 5


async def _finished(server: Server, service: FakeService, tasks: list[str], effects: int) -> None:
    await wait_all_final(server, tasks)
    rows = await fetch(server, "select task_id, parent, status, epoch from outlive.task")
    children = [row["task_id"] for row in rows if row["parent"]]
    assert len(children) == 5 == len(set(children)), "a child was made twice"
    await wait_all_final(server, children)
    await assert_progress_gapless(server, [*tasks, *children])
    await assert_effects_once(service, effects)
    kinds = "select count(*), count(distinct (task_id, step_id)) from outlive.step where status = 'completed'"
    [(recorded, different)] = [tuple(row) for row in await fetch(server, kinds)]
    assert recorded == different, "a step was recorded twice"


@pytest.mark.parametrize("name", failpoints.NAMES)
async def test_a_kill_at(shared: Server, service: FakeService, name: str) -> None:
    dying = f"{name}=kill@{AFTER.get(name, 5)}"
    async with WorkerProcess(shared, service=service, failpoints=dying) as first:
        other = WorkerProcess(shared, service=service)
        try:
            await other.start()  # it comes up while the first one works, and finds it dead or alive
            tasks, effects = await _submit(shared)
            assert await first.exited() == -9, "it died at its failpoint"
            await other.ready()
            await _finished(shared, service, tasks, effects)
        finally:
            await other.close()


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 7, 19])
@pytest.mark.parametrize("name", failpoints.NAMES)
async def test_a_kill_of_the_only_worker_at_any_hit_of(
    shared: Server, service: FakeService, name: str, after: int
) -> None:
    """The same without another worker: the next one begins from the tables and the stream alone."""
    after += name == "claim.before"  # its first hit comes before there is any work
    async with WorkerProcess(shared, service=service, failpoints=f"{name}=kill@{after}") as worker:
        tasks, effects = await _submit(shared)
        try:
            assert await worker.exited(within=5) == -9
        except TimeoutError:
            assert after > 1, "this failpoint was never reached"
            worker.kill()  # not so many hits: it dies at its end
        await worker.restart()
        await _finished(shared, service, tasks, effects)
