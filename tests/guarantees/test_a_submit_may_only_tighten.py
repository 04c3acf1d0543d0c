"""Who submits a task may have more effects wait for a yes, never fewer; only an operator switches that off, and it is told."""

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.answers import Code
from outlive.protocol.commands import Approve
from outlive.protocol.errors import CommandRefused
from tests.chaos.consent_app import refunds
from tests.chaos.harness import WorkerProcess, fetch, send, submit_many, until, wait_all_final

APP = "tests.chaos.consent_app:app"
PAUSED = "select count(*) = $1 from outlive.task where status = 'paused'"
ANSWER = "select code, message from outlive_store.inbox where task_id = $1"


def worker(shared: Server, service: FakeService, **environment: str) -> WorkerProcess:
    return WorkerProcess(shared, APP, service=service, environment=environment)


@pytest.mark.parametrize("wanted", [True, ["refund"]])
async def test_a_submit_has_effects_wait_for_a_yes(
    shared: Server, service: FakeService, wanted: bool | list[str]
) -> None:
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        kind = refunds.with_options(task_id="r-1", requires_approval=wanted)
        await client.submit(kind, "o-1", [500])
        await until(shared, PAUSED, 1)
        assert (await service.counts()).names == {}
        with pytest.raises(CommandRefused) as refused:  # the same task under less care is another one
            await client.submit(refunds.with_options(task_id="r-1"), "o-1", [500])
        assert refused.value.answer.code is Code.CONFLICT
        await client.command("r-1", Approve(operation_id="1"))
        assert await client.result("r-1", list[int | str], timeout=20) == [1]


@pytest.mark.parametrize("kind", ["parent", "again"])
async def test_children_and_later_runs_inherit_it(shared: Server, service: FakeService, kind: str) -> None:
    async with worker(shared, service), Client(shared.settings) as client:
        await client.submit(kind, {"order": "o-1"}, requires_approval=["refund"])
        await until(shared, PAUSED, 1)
        assert (await service.counts()).names == {}


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({"requires_approval": False}, "a submit may only tighten; allowed is"),
        ({"requires_approval": []}, "a submit may only tighten"),
        ({"requires_approval": "never"}, "is not understood; allowed is"),
        ({"budget": 3}, "policy budget=3 cannot be used"),
        ({"budget": {"dollars": 3}}, "policy budget={'dollars': 3} cannot be used"),
        ({"colour": 3}, "policy 'colour' is not known; allowed is {\"requires_approval\": true}"),
    ],
)
async def test_anything_else_is_answered_invalid(
    shared: Server, service: FakeService, policy: dict[str, object], why: str
) -> None:
    async with worker(shared, service):
        await send(shared, "r-1", "submit", kind="refunds", input={"order": "o-1", "cents": []}, policy=policy)
        await until(shared, "select count(*) = 1 from outlive_store.inbox where code is not null")
        (answer,) = await fetch(shared, ANSWER, "r-1")
        assert answer["code"] == "invalid"
        assert why in answer["message"]
        assert await fetch(shared, "select 1 from outlive.task") == []


async def test_a_tool_that_is_not_there_is_no_yes(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings) as client:
        await client.submit(refunds.with_options(task_id="r-1", requires_approval=["refnud"]), "o-1", [500])
        await wait_all_final(shared, ["r-1"], status="failed")
        failure = (await client.get("r-1")).failure
        assert failure is not None
        assert "requires_approval names 'refnud', which is no effect of this app; it has: " in failure.message
        assert (await service.counts()).names == {}


async def test_an_operator_switches_a_yes_off_and_it_is_told(shared: Server, service: FakeService) -> None:
    async with worker(shared, service, OUTLIVE_WAIVED_APPROVALS="pay, other"), Client(shared.settings) as client:
        await wait_all_final(shared, await submit_many(shared, "payment", 1, {"order": "o-1"}))
        assert (await service.counts()).names == {"pay": 1}
        told = "select status, convert_from(event, 'UTF8') as event from outlive_store.fact where type = 'approval'"
        (fact,) = await fetch(shared, told)
        assert fact["status"] == "waived"
        assert "was not asked for: waived by the operator" in fact["event"]
        (operation,) = (await client.operations("payment-0")).operations
        assert operation.note == "not asked: waived by the operator"
        audit = "select who, what, detail from outlive_store.audit where what = 'waive_approval'"
        ((who, _, detail),) = await fetch(shared, audit)
        assert who == "operator"
        assert detail.startswith("waived: pay(")
        await client.submit("payment", {"order": "o-2"}, requires_approval=True)  # who submits wants it all the same
        await until(shared, PAUSED, 1)
