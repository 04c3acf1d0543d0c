"""Retry, skip, resolve: applied to what they name, or answered with what to do instead."""

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.answers import Code
from outlive.protocol.commands import Approve, Resolve, Retry, Skip
from outlive.protocol.errors import CommandRefused, TaskFailed
from tests.chaos.harness import WorkerProcess, fetch, submit_many, until, wait_all_final

APP = "tests.chaos.effects_app:app"
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"


async def test_a_failed_task_goes_on_at_the_step_that_failed(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="post", after=1, status=403)
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings, by="ann") as client:
        await wait_all_final(shared, await submit_many(shared, "posts", 1), status="failed")
        with pytest.raises(TaskFailed, match="403"):
            await client.result("posts-0", list[int])
        await client.command("posts-0", Retry(step_id="2"))
        assert await client.result("posts-0", list[int], timeout=20) == [1, 2]
        assert (await service.counts()).names == {"post": 2}
        (asked,) = await fetch(shared, "select who, what, before, after from outlive_store.audit where what = 'retry'")
        assert tuple(asked) == ("ann", "retry", "failed", "running")


async def test_a_skipped_step_is_not_run(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="post", after=1, times=None, status=403)
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings) as client:
        await wait_all_final(shared, await submit_many(shared, "posts", 1), status="failed")
        await client.command("posts-0", Skip(step_id="2", result=77))
        assert await client.result("posts-0", list[int], timeout=20) == [1, 77]
        assert (await service.counts()).names == {"post": 1}


async def test_a_succeeded_step_keeps_its_first_result(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="post", after=1, status=403)
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings) as client:
        await wait_all_final(shared, await submit_many(shared, "posts", 1), status="failed")
        with pytest.raises(CommandRefused, match="its result stands") as refused:
            await client.command("posts-0", Retry(step_id="1"))
        assert refused.value.answer.code is Code.STALE
        assert (await service.counts()).names == {"post": 1}


async def test_a_question_can_be_skipped(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings) as client:
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        await client.command("mail-0", Skip(step_id="1", result=5))
        assert await client.result("mail-0", str, timeout=20) == "sent 5"
        assert (await service.counts()).names == {}


@pytest.mark.parametrize(
    ("verdict", "calls", "ends"),
    [("did_not_happen", 2, "succeeded"), ("give_up", 1, "failed"), ("happened_result_lost", 1, "failed")],
)
async def test_a_persons_word_on_an_unknown_outcome(
    shared: Server, service: FakeService, verdict: str, calls: int, ends: str
) -> None:
    await service.behave("lose_answer", name="charge_card")
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings) as client:
        tasks = await submit_many(shared, "charge", 1)
        await until(shared, PAUSED)
        with pytest.raises(CommandRefused):
            await client.command("charge-0", Approve(operation_id="1"))
        await client.command("charge-0", Resolve(operation_id="1", verdict=verdict))  # type: ignore[arg-type]  # parametrized
        await wait_all_final(shared, tasks, status=ends)
        assert (await client.get("charge-0")).status == ends
        assert (await service.counts()).names == {"charge_card": calls}


async def test_nothing_is_sent_again_while_a_thread_may_still_send(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, APP, service=service):
        await wait_all_final(shared, await submit_many(shared, "slow", 1))
        assert (await service.counts()).names == {"slow_ticket": 1}
