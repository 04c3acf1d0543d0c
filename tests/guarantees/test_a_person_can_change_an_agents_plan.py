"""An edit of a plan is applied to the version that its author saw, or told to be stale; it survives whatever dies."""

import msgspec
import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.answers import Code
from outlive.protocol.errors import CommandRefused, TaskFailed
from outlive.protocol.plan import Item, Plan
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, some, submit_many, until, wait_all_final

APP = "tests.chaos.planned_app:app"
ASKED = "select reasons -> 0 ->> 'message' = $1 from outlive.waiting where task_id = 'agent-0'"
OTHER = [Item("a", "the first"), Item("d", "another", ["a"]), Item("c", "the third", ["d"])]
KILLS = [
    "claim.after=kill@2", "outcome.before_commit=kill@2", "outcome.after_commit=kill@2", "outcome.before_commit=kill@3",
    "intent.before_commit=kill@2", "intent.after_commit=kill@2", "effect.after=kill@2", "ingest.after_commit=kill@2",
    "ingest.before_commit=kill@3", "final.after_commit=kill@1",
]  # fmt: skip


async def _refused(client: Client, task_id: str, version: int) -> tuple[Code, str]:
    with pytest.raises(CommandRefused) as refused:
        await client.edit_plan(task_id, version, OTHER)
    return refused.value.answer.code, refused.value.answer.message


async def _answer(client: Client, shared: Server, item: str) -> None:
    await until(shared, ASKED, f"{item}?")
    (reason,) = (await client.get("agent-0")).reasons
    await client.answer("agent-0", reason.step_id or "", "yes")


@pytest.mark.parametrize(
    "failpoints",
    some(["", *KILLS], "", "outcome.before_commit=kill@2"),
)
async def test_whatever_dies_the_agent_goes_on_by_the_edited_plan(
    shared: Server, service: FakeService, failpoints: str
) -> None:
    spare = WorkerProcess(shared, APP, service=service)
    async with WorkerProcess(shared, APP, service=service, failpoints=failpoints) as _, spare:
        async with Client(shared.settings, by="ann", timeout=30) as client:
            await submit_many(shared, "agent", 1)
            await _answer(client, shared, "a")
            await until(shared, ASKED, "b?")
            answer = await client.edit_plan("agent-0", 1, OTHER, reason="b is not needed")
            assert answer.message == ("The plan of task agent-0 is version 2 now by ann; its next decision goes by it.")
            assert await _refused(client, "agent-0", 1) == (
                Code.STALE,
                "The plan of task agent-0 is version 2, not version 1. Look again: outlive edit-plan agent-0 --show",
            )
            await _answer(client, shared, "b")  # it was decided before the edit: it is carried out
            await _answer(client, shared, "d")
            await _answer(client, shared, "c")
            assert await client.result("agent-0", list[str], timeout=30) == ["a", "b", "d", "c"]
            record = await client.get("agent-0")
        assert record.plan is not None
        assert (record.plan.version, record.plan.by, record.plan.note) == (2, "ann", "b is not needed")
        assert [(item.id, str(item.status)) for item in record.plan.items] == [
            ("a", "done"), ("d", "done"), ("c", "done"), ("b", "dropped"),
        ]  # fmt: skip
        assert (await service.counts()).names == {"work": 4}
        rows = await fetch(
            shared, "select body from outlive_store.fact where task_id = 'agent-0' and type = 'plan' order by seq"
        )
        plans = [msgspec.json.decode(row["body"], type=Plan) for row in rows]
        assert [(plan.version, plan.by) for plan in plans] == [(1, "model"), (2, "ann")]
        said = [
            tuple(row)
            for row in await fetch(shared, "select who, what from outlive_store.audit where what = 'edit_plan'")
        ]
        assert said == [("ann", "edit_plan")] * 2  # the second one was refused
        await assert_progress_gapless(shared, ["agent-0"])


async def test_an_edit_before_the_start_is_the_first_plan(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, APP, service=service) as worker, Client(shared.settings, by="ann") as client:
        await submit_many(shared, "agent", 1, {"pace": False}, name="warm")  # the kind is known from now on
        await wait_all_final(shared, ["warm-0"])
        worker.stop()
        async with WorkerProcess(shared, "tests.chaos.questions_app:app", service=service):
            await submit_many(shared, "agent", 1, {"pace": False})
            await until(shared, "select count(*) = 1 from outlive.task where task_id = 'agent-0'")
            await client.edit_plan("agent-0", 0, [Item("z", "all of it")])
            code, message = await _refused(client, "agent-0", 0)
            assert (code, "is version 1, not version 0" in message) == (Code.STALE, True)
        worker.cont()
        await worker.restart()
        assert await client.result("agent-0", list[str], timeout=30) == ["z"]
        record = await client.get("agent-0")
        assert record.plan is not None
        assert (record.plan.version, record.plan.by, record.total_steps) == (1, "ann", 1)


async def test_a_plan_that_is_written_in_code_is_not_for_people(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings, by="ann") as client:
        await submit_many(shared, "written", 1)
        await until(shared, "select count(*) = 1 from outlive.waiting where task_id = 'written-0'")
        assert await _refused(client, "written-0", 1) == (
            Code.INVALID,
            "Task written-0 has no plan that a person could change: what it does next is written in its code. Nothing was changed.",
        )


async def test_an_edit_of_a_failed_agent_lets_it_go_on(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="work", after=1, times=None, status=403)
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings, by="ann") as client:
        await submit_many(shared, "agent", 1, {"pace": False})
        await wait_all_final(shared, ["agent-0"], status="failed")
        answer = await client.edit_plan("agent-0", 1, OTHER)
        assert answer.message == (
            "The plan of task agent-0 is version 2 now by ann. The task goes on; where it fails at the same step again: "
            "outlive retry agent-0"
        )
        with pytest.raises(TaskFailed) as failed:  # this one has no way around a step that failed
            await client.result("agent-0", list[str], timeout=20)
        assert (await _refused(client, "agent-0", 1))[0] is Code.STALE
        await service.calm()
        await client.retry("agent-0", failed.value.failure.step_id)
        assert await client.result("agent-0", list[str], timeout=20) == ["a", "b", "d", "c"]
