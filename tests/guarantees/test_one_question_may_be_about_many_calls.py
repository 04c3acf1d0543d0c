"""One question about several calls: each uses its part of the yes once, whatever dies between the answer and the last use."""

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.commands import Approve, Reject, Retry
from outlive.protocol.errors import CommandRefused
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, some, submit_many, until, wait_all_final

APP = "tests.chaos.consent_app:app"
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"
PEOPLE = [f"{name}@example.com" for name in ("ann", "bob", "cem", "dia", "eve")]
APPROVALS = "select status, count(*) as n from outlive_store.fact where type = 'approval' group by 1"


def worker(shared: Server, service: FakeService, failpoints: str = "", **environment: str) -> WorkerProcess:
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5", **environment}
    return WorkerProcess(shared, APP, service=service, failpoints=failpoints, environment=short)


async def approvals(shared: Server) -> dict[str, int]:
    return {row["status"]: row["n"] for row in await fetch(shared, APPROVALS)}


async def test_one_question_one_answer_each_part_used_once(shared: Server, service: FakeService) -> None:
    async with worker(shared, service) as works, Client(shared.settings, by="ann") as client:
        await submit_many(shared, "mails", 1, {"people": [*PEOPLE, "me"]})
        await until(shared, PAUSED)
        (reason,) = (await client.get("mails-0")).reasons
        assert reason.message.startswith(
            '5 calls wait for one yes: mail("ann@example.com") waits for your yes: one mail'
        )
        assert "one mail to eve@example.com" in reason.message
        assert reason.do == "outlive approve mails-0 8"
        ledger = (await client.operations("mails-0")).operations
        assert [(each.status, each.arguments) for each in ledger] == [
            ("awaiting_approval", {"to": to}) for to in PEOPLE
        ]
        await works.restart()  # a fresh process knows nothing but the table
        with pytest.raises(CommandRefused):
            await client.command("mails-0", Approve(operation_id="8", digest="0" * 32))
        await client.command("mails-0", Approve(operation_id="8", digest=reason.digest))
        assert await client.result("mails-0", list[int | str], timeout=30) == ["True", "all", 1, 2, 3, 4, 5, 6]
        with pytest.raises(CommandRefused):
            await client.command("mails-0", Reject(operation_id="8"))
        assert (await service.counts()).names == {"mail": 6}
        assert await approvals(shared) == {"asked": 1, "given": 1, "used": 5}
        notes = [each.note for each in (await client.operations("mails-0")).operations]
        assert notes == ["yes of ann (step 8)"] * 5 + [None]
        await assert_progress_gapless(shared, ["mails-0"])


@pytest.mark.parametrize(
    "failpoint",
    some(
        [
            "outcome.after_commit=kill",  # the answer is a fact, nothing is used
            "intent.before_commit=kill@4",
            "intent.after_commit=kill@4",
            "effect.before=kill@3",
            "effect.after=kill@3",
            "outcome.before_commit=kill@5",
        ],
        "outcome.after_commit=kill",
        "effect.after=kill@3",
    ),
)
async def test_killed_between_answer_and_last_use_each_is_used_once(
    shared: Server, service: FakeService, failpoint: str
) -> None:
    async with worker(shared, service, failpoint) as killed, Client(shared.settings, by="ann") as client:
        tasks = await submit_many(shared, "mails", 1, {"people": PEOPLE})
        await until(shared, PAUSED)
        await client.command("mails-0", Approve(operation_id="7"))
        await killed.exited()
        await killed.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"mail": 5}
        assert await approvals(shared) == {"asked": 1, "given": 1, "used": 5}
        await assert_progress_gapless(shared, tasks)


async def test_a_no_refuses_each_and_what_is_not_in_the_list_asks_for_itself(
    shared: Server, service: FakeService
) -> None:
    async with worker(shared, service) as works, Client(shared.settings, by="ann") as client:
        await submit_many(shared, "mails", 1, {"people": PEOPLE[:2], "others": ["zoe@example.com", PEOPLE[0]]})
        await until(shared, PAUSED)
        await client.command("mails-0", Reject(operation_id="6", reason="not now"))
        await until(shared, "select reasons::text like '%zoe%' from outlive.waiting")
        await works.restart()
        await client.command("mails-0", Approve(operation_id="3"))
        # The last one is the same call as the first: refused with the same words, not asked for.
        ends = await client.result("mails-0", list[int | str], timeout=30)
        assert ends == ["False", "all", "Rejected", "Rejected", 1, "Rejected"]
        assert (await service.counts()).names == {"mail": 1}
        notes = [each.note for each in (await client.operations("mails-0")).operations]
        assert notes[0] == "rejected: mail: 2 calls were refused by ann: not now (step 6)"
        assert "2 calls were refused by ann: not now" in str(notes[3])


async def test_silence_is_a_no_to_each(shared: Server, service: FakeService) -> None:
    async with worker(shared, service, EFFECTS_TTL="1.5"), Client(shared.settings) as client:
        await wait_all_final(shared, await submit_many(shared, "mails", 1, {"people": [*PEOPLE[:2], "me"]}))
        assert await client.result("mails-0", list[int | str]) == [
            "False", "all", "ApprovalExpired", "ApprovalExpired", 1,
        ]  # fmt: skip
        assert (await service.counts()).names == {"mail": 1}


async def test_forty_previews_are_bounded_and_nothing_is_asked_for_nothing(
    shared: Server, service: FakeService
) -> None:
    async with worker(shared, service), Client(shared.settings) as client:
        await submit_many(shared, "mails", 1, {"people": [f"{n}{'x' * 50}@example.com" for n in range(40)]})
        await until(shared, PAUSED)
        (reason,) = (await client.get("mails-0")).reasons
        assert len(reason.message) <= 2000
        assert reason.message.endswith("more: outlive receipt mails-0")
        listed = (await client.operations("mails-0")).operations
        assert len(listed) == 40
        assert "one mail to 39xx" in str([each.note for each in listed])
        await wait_all_final(shared, await submit_many(shared, "mails", 1, {"people": ["me"]}, name="mine"))
        assert await client.result("mine-0", list[int | str]) == ["True", "all", 1]


async def test_the_attempts_of_an_operation_rest_on_one_yes(shared: Server, service: FakeService) -> None:
    await service.behave("throttle", name="mail", seconds=2)
    async with worker(shared, service) as works, Client(shared.settings) as client:
        tasks = await submit_many(shared, "one_mail", 1, {"to": "ann@example.com"})
        await until(shared, PAUSED)
        await client.command("one_mail-0", Approve(operation_id="1"))
        await until(shared, "select count(*) = 1 from outlive.attempt where error_class = 'rate_limited'")
        await works.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"mail": 1}
        assert await approvals(shared) == {"asked": 1, "given": 1, "used": 1}


async def test_a_step_that_a_person_has_tried_again_is_asked_for_anew(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings) as client:
        await submit_many(shared, "one_mail", 1, {"to": "ann@example.com"})
        await until(shared, PAUSED)
        await client.command("one_mail-0", Reject(operation_id="1"))
        await wait_all_final(shared, ["one_mail-0"], status="failed")
        await client.command("one_mail-0", Retry(step_id="1"))
        await until(shared, PAUSED)
        await client.command("one_mail-0", Approve(operation_id="1"))
        assert await client.result("one_mail-0", int, timeout=20) == 1
        assert await approvals(shared) == {"asked": 2, "refused": 1, "given": 1, "used": 1}
