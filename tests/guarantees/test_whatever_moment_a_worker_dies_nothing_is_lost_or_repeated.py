"""A worker dies by SIGKILL at every point at which "done" and "recorded" can part; another one finishes its tasks."""

import asyncio

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra import failpoints
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    send,
    some,
    submit_many,
    until,
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


PERSONS = (
    "question.before_commit", "question.after_commit", "unknown.before_commit", "unknown.after_commit", "reconcile.before",
    "reconcile.after", "wait.before_commit", "wait.after_commit", "child.before_commit", "child.after_commit",
    "leave.before_commit", "leave.after_commit", "clerk.before_commit", "clerk.after_commit", "tell.before_commit",
    "tell.after_commit",
)  # fmt: skip
"""Where the flow waits for somebody, or asks: passed by a task of another kind, with a person beside it."""

STEPS = [name for name in failpoints.NAMES if name not in PERSONS]


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


@pytest.mark.parametrize(
    "name", some(STEPS, "ingest.after_commit", "claim.after", "intent.after_commit", "effect.after", "outcome.before_commit",
                 "publish.after", "final.after_commit")
)  # fmt: skip
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


@pytest.mark.parametrize(
    "name", some(PERSONS, "question.after_commit", "unknown.after_commit", "wait.before_commit", "child.after_commit",
                 "clerk.after_commit", "tell.after_commit")
)  # fmt: skip
async def test_a_kill_where_somebody_is_asked_or_waited_for_at(shared: Server, service: FakeService, name: str) -> None:
    """A lost answer, a question, a pause and a resume while nobody has the task in memory, a signal and a child."""
    await service.behave("lose_answer", name="open_ticket", times=1)
    variables = {"OUTLIVE_LINGER": "0", "EFFECTS_SETTLE": "0.2"}
    app = "tests.chaos.effects_app:app"
    async with (
        WorkerProcess(shared, app, service=service, failpoints=f"{name}=kill", environment=variables) as worker,
        asyncio.TaskGroup() as group,
    ):
        death = group.create_task(_die_once(worker))
        [task] = await submit_many(shared, "everything", 1)
        await _be_the_person(shared, task)
        await death
        await wait_all_final(shared, [task])
        [child] = await fetch(shared, "select task_id from outlive.task where parent = $1", task)
        await assert_progress_gapless(shared, [task, child["task_id"]])
    assert (await service.counts()).names == {"open_ticket": 2, "send_mail": 1}
    await assert_effects_once(service, 3)


async def _die_once(worker: WorkerProcess) -> None:
    """See the worker die at its failpoint, and start another one."""
    assert await worker.exited() == -9
    await worker.restart()


async def _be_the_person(server: Server, task: str) -> None:
    status = "select status = $2 from outlive.task where task_id = $1"
    await until(server, status, task, "paused")
    await send(server, task, "approve", operation_id="2")
    await until(server, "select waiting_for = 'signal go' from outlive_store.task where task_id = $1", task)
    await send(server, task, "pause")
    await until(server, status, task, "paused")
    await send(server, task, "resume")
    await until(server, status, task, "running")
    await send(server, task, "signal", name="go", value=True)


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 7, 19])
@pytest.mark.parametrize("name", STEPS)
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
