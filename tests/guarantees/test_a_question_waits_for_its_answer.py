"""A question is put once and its first answer counts, whenever workers die before, while and after it is answered."""

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.answers import Code
from outlive.protocol.errors import CommandRefused
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, some, submit_many, until

APP = "tests.chaos.questions_app:app"
ASKED = (
    "select count(*) = 1 from outlive.waiting where task_id = 'trip-0' and reasons -> 0 ->> 'step_id' = $1"
    " and reasons -> 0 ->> 'reason' = 'question'"
)
KILLS = [
    "claim.after=kill@1", "claim.after=kill@2", "outcome.before_commit=kill@1", "outcome.after_commit=kill@1",
    "effect.after=kill@1", "outcome.before_commit=kill@3", "outcome.after_commit=kill@3", "final.before_commit=kill@1",
    "final.after_commit=kill@1", "publish.before=kill@2", "ingest.after_commit=kill@2",
]  # fmt: skip


@pytest.mark.parametrize(
    "failpoints",
    some(
        KILLS,
        "outcome.before_commit=kill@1",
        "ingest.after_commit=kill@2",
    ),
)
async def test_whenever_a_worker_dies_each_question_is_put_once(
    shared: Server, service: FakeService, failpoints: str
) -> None:
    spare = WorkerProcess(shared, APP, service=service)
    async with WorkerProcess(shared, APP, service=service, failpoints=failpoints) as _, spare:
        async with Client(shared.settings, by="ann", timeout=30) as client:
            await submit_many(shared, "trip", 1)
            await until(shared, ASKED, "1")
            await client.answer("trip-0", "1", "June")
            await until(shared, ASKED, "3")
            await client.answer("trip-0", "3", "yes")
            assert await client.result("trip-0", str, timeout=30) == "June: yes"
        await _as_without_kills(shared, service)


async def test_nobody_need_live_while_it_waits(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, APP, service=service) as worker:
        await submit_many(shared, "trip", 1)
        await until(shared, ASKED, "1")
        (row,) = await fetch(shared, "select owner, due_at from outlive_store.task where task_id = 'trip-0'")
        assert tuple(row) == (None, None)
        await worker.restart()
        async with Client(shared.settings, by="ann", timeout=30) as client:
            await client.answer("trip-0", "1", "June")
            with pytest.raises(CommandRefused, match="ann answered it at") as refused:
                await client.answer("trip-0", "1", "May")
            assert refused.value.answer.code is Code.STALE
            await until(shared, ASKED, "3")
            await worker.restart()
            await client.answer("trip-0", "3", "yes")
            assert await client.result("trip-0", str, timeout=30) == "June: yes"
        await _as_without_kills(shared, service)


async def _as_without_kills(shared: Server, service: FakeService) -> None:
    asked = await fetch(
        shared, "select step_id, status from outlive.step where task_id = 'trip-0' and name = 'ask' order by seq"
    )
    assert [tuple(row) for row in asked] == [
        ("1", "waiting"), ("1", "completed"), ("3", "waiting"), ("3", "completed"),
    ]  # fmt: skip
    assert (await service.counts()).keys == {"default/trip-0:2:1": 1}
    await assert_progress_gapless(shared, ["trip-0"])
