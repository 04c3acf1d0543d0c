"""An agent of pydantic-ai runs as a task: no answer of its model is paid twice, no effect is repeated blindly."""

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.commands import Approve, Reject, Resolve
from tests.chaos.existing_app import SECRET, Report, report, work
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, some, until

APP = "tests.chaos.existing_app:app"
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"
OPERATIONS = "select step_id, name, status, attempts from outlive.operation order by started_at, step_id"


def worker(shared: Server, service: FakeService, failpoints: str = "") -> WorkerProcess:
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}
    return WorkerProcess(shared, APP, service=service, failpoints=failpoints, environment=short)


async def test_killed_in_its_second_tool_it_goes_on_without_a_second_request(
    shared: Server, service: FakeService
) -> None:
    async with worker(shared, service, "effect.after=kill@4") as killed, Client(shared.settings, by="ann") as client:
        handle = await client.submit(work.with_options(task_id="t"), "post 1\npost 2")
        await killed.exited()
        assert (await service.counts()).names == {"request": 2, "post": 2}
        await killed.restart()
        assert await handle.result(timeout=20) == "posted 1; posted 2"
        counts = await service.counts()
        assert counts.names == {"request": 3, "post": 2}
        assert set(counts.keys.values()) == {1}
        rows = [tuple(row) for row in await fetch(shared, OPERATIONS)]
        assert rows == [
            ("request-1", "clerk__model.request", "succeeded", 1),
            ("call-1-1", "clerk.post", "succeeded", 1),
            ("request-2", "clerk__model.request", "succeeded", 1),
            ("call-2-1", "clerk.post", "succeeded", 2),
            ("request-3", "clerk__model.request", "succeeded", 1),
        ]
        await assert_progress_gapless(shared, ["t"])


async def test_killed_in_an_effect_that_nobody_can_be_asked_about_a_person_decides(
    shared: Server, service: FakeService
) -> None:
    async with worker(shared, service, "effect.after=kill@4") as killed, Client(shared.settings, by="ann") as client:
        handle = await client.submit(work.with_options(task_id="t"), "post 1\npay 2")
        await killed.exited()
        await killed.restart()
        await until(shared, PAUSED)
        assert (await service.counts()).names == {"request": 2, "post": 1, "pay": 1}
        (reason,) = (await client.get("t")).reasons
        assert (reason.reason, reason.do) == ("outcome_unknown", "outlive resolve t call-2-1")
        await client.command("t", Resolve(operation_id="call-2-1", verdict="happened", result="paid 2", reason="seen"))
        assert await handle.result(timeout=20) == "posted 1; paid 2"
        assert (await service.counts()).names == {"request": 3, "post": 1, "pay": 1}


@pytest.mark.parametrize("point", ["effect.before", "outcome.after_commit"])
@pytest.mark.parametrize("hit", some([1, 2, 3], 2))
async def test_killed_anywhere_a_stored_answer_is_not_asked_for_again(
    shared: Server, service: FakeService, point: str, hit: int
) -> None:
    async with worker(shared, service, f"{point}=kill@{hit}") as killed, Client(shared.settings, by="ann") as client:
        handle = await client.submit(work.with_options(task_id="t"), "look 1, post 2")
        await killed.exited()
        await killed.restart()
        assert await handle.result(timeout=20) == "looked 1; posted 2"
        counts = await service.counts()
        lost = sum(row["attempts"] - 1 for row in await fetch(shared, "select attempts from outlive.operation"))
        assert counts.names["post"] == 1
        assert 2 <= counts.names["request"] <= 2 + lost
        assert lost <= 1


async def test_calls_of_one_answer_run_side_by_side_and_keep_their_places(shared: Server, service: FakeService) -> None:
    async with worker(shared, service, "outcome.after_commit=kill@3"), Client(shared.settings, by="ann") as client:
        handle = await client.submit(work, "look 1, look 2, look 3, post 4, post 5\nlook 6")
        async with worker(shared, service):
            assert await handle.result(timeout=20) == "looked 1; looked 2; looked 3; posted 4; posted 5; looked 6"
        assert (await service.counts()).names["post"] == 2


async def test_a_tool_that_wants_an_approval_asks_a_person_with_its_arguments(
    shared: Server, service: FakeService
) -> None:
    async with worker(shared, service) as process, Client(shared.settings, by="ann") as client:
        handle = await client.submit(work.with_options(task_id="t"), "look 1\nsend 2")
        await until(shared, PAUSED)
        await process.restart()
        (reason,) = (await client.get("t")).reasons
        assert (reason.reason, reason.message) == ("approval", "clerk.send(2) waits for your yes")
        assert "send" not in (await service.counts()).names
        await client.command("t", Approve(operation_id="call-2-1", digest=reason.digest))
        assert await handle.result(timeout=20) == "looked 1; sent 2"
        assert (await service.counts()).names["send"] == 1
        assert (await service.counts()).names["request"] == 3


async def test_a_no_is_told_to_the_model(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        handle = await client.submit(work.with_options(task_id="t"), "send 2")
        await until(shared, PAUSED)
        await client.command("t", Reject(operation_id="call-1-1", reason="too much"))
        assert await handle.result(timeout=20) == "send was refused by ann: too much"
        assert "send" not in (await service.counts()).names


async def test_what_the_model_thinks_is_stored_nowhere(shared: Server, service: FakeService) -> None:
    async with worker(shared, service) as process, Client(shared.settings, by="ann") as client:
        assert await client.result((await client.submit(work, "look 1")).task_id, str, timeout=20) == "looked 1"
        for table in ("fact", "operation", "attempt", "task"):
            rows = await fetch(shared, f"select * from outlive_store.{table}")  # noqa: S608  # of these four
            assert rows or table == "attempt"
            assert not [
                row for row in rows if SECRET in str([bytes(v) if isinstance(v, memoryview) else v for v in row])
            ]
        assert SECRET not in process.log


async def test_output_is_of_the_agents_type(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        handle = await client.submit(report, "sum up")
        assert await handle.result(timeout=20) == Report(total=7)
