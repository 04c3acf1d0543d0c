"""An idempotency key belongs to one payload: another one is never sent under it, nor recorded, nor has the first one's result."""

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.task import ReasonCode
from tests.chaos.harness import WorkerProcess, fetch, submit_many, until, wait_all_final

APP = "tests.chaos.effects_app:app"
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"


async def test_nothing_is_sent_under_a_key_that_the_ledger_has_for_something_else(
    shared: Server, service: FakeService
) -> None:
    await service.behave("fail", name="post", after=1, status=403)
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings) as client:
        await wait_all_final(shared, await submit_many(shared, "posts", 1), status="failed")
        requests = (await service.counts()).requests
        await fetch(
            shared, "update outlive_store.operation set digest = decode(repeat('ab', 16), 'hex') where step_id = '2'"
        )
        await client.retry("posts-0", "2")
        await until(shared, PAUSED)
        (reason,) = (await client.get("posts-0")).reasons
        assert reason.reason is ReasonCode.VERSION_MISMATCH
        assert reason.message.startswith(
            "Operation 2:1 was begun with other arguments than would be sent under its key"
        )
        assert (await service.counts()).requests == requests


async def test_the_first_result_answers_only_what_it_was_the_result_of(shared: Server, service: FakeService) -> None:
    await service.behave("lose_answer", name="charge_card")
    async with WorkerProcess(shared, APP, service=service), Client(shared.settings) as client:
        await submit_many(shared, "charge", 1)
        await until(shared, PAUSED)
        await client.resolve("charge-0", "1", "happened_result_lost")
        await wait_all_final(shared, ["charge-0"], status="failed")
        await client.retry("charge-0", "1", args={"cents": 5})
        assert await client.result("charge-0", int, timeout=20) == 2
        first, second = (await client.operations("charge-0")).operations
        assert [(each.operation_id, each.status, each.result) for each in (first, second)] == [
            ("1", "succeeded", None), ("2", "succeeded", 2)
        ]  # fmt: skip
        assert first.digest != second.digest
