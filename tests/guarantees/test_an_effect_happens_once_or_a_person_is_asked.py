"""A lost answer: the world is asked where it can be, else a person; nothing is repeated blindly."""

import asyncio
import os
import sys

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.commands import Approve, Reject, Resolve
from outlive.protocol.errors import CommandRefused
from outlive.protocol.task import Status
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, some, submit_many, until, wait_all_final

APP = "tests.chaos.effects_app:app"
NOT_SENT = ("intent.after_commit", "effect.before")
KILLED = ["effect.before", "effect.after", "intent.after_commit", "outcome.before_commit", "outcome.after_commit"]
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"


def worker(shared: Server, service: FakeService, failpoints: str = "", **environment: str) -> WorkerProcess:
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5", **environment}
    return WorkerProcess(shared, APP, service=service, failpoints=failpoints, environment=short)


async def test_lost_answer_with_reconcile_is_one_effect_and_no_second_call(
    shared: Server, service: FakeService
) -> None:
    await service.behave("lose_answer", name="open_ticket")
    async with worker(shared, service):
        tasks = await submit_many(shared, "ticket", 1)
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"open_ticket": 1}
        (operation,) = await fetch(shared, "select status, attempts from outlive.operation")
        assert tuple(operation) == ("succeeded", 1)
        await assert_progress_gapless(shared, tasks)


async def test_lost_request_with_reconcile_is_sent_again_after_settle(shared: Server, service: FakeService) -> None:
    await service.behave("drop", name="open_ticket")
    async with worker(shared, service, EFFECTS_SETTLE="0.5"):
        await wait_all_final(shared, await submit_many(shared, "ticket", 1))
        assert (await service.counts()).names == {"open_ticket": 1}
        (operation,) = await fetch(shared, "select status, attempts from outlive.operation")
        assert tuple(operation) == ("succeeded", 2)


@pytest.mark.parametrize("point", some(KILLED, "effect.after", "outcome.before_commit"))
async def test_killed_between_intent_and_record_with_reconcile_is_one_effect(
    shared: Server, service: FakeService, point: str
) -> None:
    async with worker(shared, service, f"{point}=kill", EFFECTS_SETTLE="0.2") as killed:
        tasks = await submit_many(shared, "ticket", 1)
        await killed.exited()
        await killed.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"open_ticket": 1}


@pytest.mark.parametrize("point", some(KILLED[:3], "effect.after"))
async def test_killed_without_key_and_query_asks_a_person_and_never_calls_again(
    shared: Server, service: FakeService, point: str
) -> None:
    """Nothing can be known here, so nothing is repeated.

    Defeats: a remote without key and query
    Then: a lost answer stays unknown for ever: it is called once, and a person decides; a person may err
    Seen: paused, `outcome_unknown`, with the command to type
    """
    async with worker(shared, service, f"{point}=kill") as killed:
        await submit_many(shared, "charge", 1)
        await killed.exited()
        await killed.restart()
        await until(shared, PAUSED)
        assert (await service.counts()).names == ({"charge_card": 1} if point == "effect.after" else {})
        async with Client(shared.settings, by="ann") as client:
            record = await client.get("charge-0")
            assert record.reasons[0].do == "outlive resolve charge-0 1"
            assert "no reconcile" in record.reasons[0].message
            await client.command("charge-0", Resolve(operation_id="1", verdict="happened", result=7, reason="seen"))
            assert await client.result("charge-0", int, timeout=20) == 7
        await assert_progress_gapless(shared, ["charge-0"])
        assert (await service.counts()).names == ({"charge_card": 1} if point == "effect.after" else {})


LOST = {
    "posts": ("intent.before_commit", "intent.after_commit", "effect.before", "outcome.before_commit", "outcome.after_commit"),
    "ticket": (
        "intent.before_commit", "intent.after_commit", "effect.before", "unknown.before_commit", "unknown.after_commit",
        "reconcile.before", "reconcile.after", "outcome.before_commit", "outcome.after_commit",
    ),
    "charge": (
        "intent.before_commit", "intent.after_commit", "effect.before", "unknown.before_commit", "unknown.after_commit",
        "question.before_commit", "question.after_commit", "outcome.before_commit", "outcome.after_commit",
    ),
}  # fmt: skip
"""What a task of each kind passes whose answer is lost: with a key, with a question to the remote, with neither."""


@pytest.mark.parametrize(
    "moment",
    some(
        [f"{kind} {point}" for kind, points in LOST.items() for point in points],
        "posts outcome.before_commit", "ticket unknown.after_commit", "ticket reconcile.after",
        "charge unknown.before_commit", "charge question.after_commit",
    ),
)  # fmt: skip
async def test_an_answer_is_lost_and_the_worker_dies_as_well(shared: Server, service: FakeService, moment: str) -> None:
    kind, _, point = moment.partition(" ")
    await service.behave("lose_answer")
    async with worker(shared, service, f"{point}=kill", EFFECTS_SETTLE="0.2") as killed, asyncio.TaskGroup() as group:
        death = group.create_task(_die_once(killed))
        [task] = await submit_many(shared, kind, 1)
        if kind == "charge":
            await until(shared, PAUSED)
            assert (await service.counts()).names.get("charge_card", 0) == (point not in NOT_SENT)
            async with Client(shared.settings, by="ann") as client:
                await client.command(task, Resolve(operation_id="1", verdict="happened", result=7, reason="seen"))
        await death
        await wait_all_final(shared, [task])
        await assert_progress_gapless(shared, [task])
    counts = await service.counts()
    assert set(counts.keys.values()) <= {1}, "an effect happened twice"
    match kind:
        case "posts":
            assert counts.names == {"post": 2}, "one for each of its two steps"
        case "ticket":
            assert counts.names == {"open_ticket": 1}
            assert sum(counts.requests.values()) == 1, "it was sent again"
        case _:
            assert counts.names == ({} if point in NOT_SENT else {"charge_card": 1})
            assert sum(counts.requests.values()) <= 1


async def _die_once(killed: WorkerProcess) -> None:
    assert await killed.exited() == -9
    await killed.restart()


async def test_a_late_effect_is_not_doubled_when_settle_covers_it(shared: Server, service: FakeService) -> None:
    await service.behave("late", name="open_ticket", seconds=2)
    async with worker(shared, service, EFFECTS_SETTLE="3"):
        await wait_all_final(shared, await submit_many(shared, "ticket", 1))
        assert (await service.counts()).names == {"open_ticket": 1}


async def test_with_settle_0_the_same_late_effect_is_doubled(shared: Server, service: FakeService) -> None:
    """What `settle` is for: a "no" that is believed while the request is on its way."""
    await service.behave("late", name="open_ticket", seconds=5)
    async with worker(shared, service, EFFECTS_SETTLE="0", EFFECTS_TIMEOUT="0.5"):
        await wait_all_final(shared, await submit_many(shared, "ticket", 1))
        assert (await service.counts()).names == {"open_ticket": 1}
        async with asyncio.timeout(20):
            while (await service.counts()).names != {"open_ticket": 2}:  # noqa: ASYNC110  # the remote tells no event
                await asyncio.sleep(0.05)


async def test_lost_answer_with_a_key_is_one_effect(shared: Server, service: FakeService) -> None:
    await service.behave("lose_answer", name="post", times=2)
    async with worker(shared, service):
        tasks = await submit_many(shared, "posts", 1)
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"post": 2}, "one for each of its two steps"
        assert set((await service.counts()).keys.values()) == {1}


async def test_a_program_that_knows_only_ids_can_say_yes(shared: Server, service: FakeService) -> None:
    """All workers are gone meanwhile; those that start afresh need no more than the table."""
    async with worker(shared, service) as works:
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        await works.restart()
        command = [sys.executable, "-m", "outlive", "approve", "mail-0", "1"]
        environment = {**os.environ, **shared.environment}
        says = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.DEVNULL)
        assert await says.wait() == 0
        await wait_all_final(shared, ["mail-0"])
    assert (await service.counts()).names == {"send_mail": 1}


async def test_a_no_after_a_restart(shared: Server, service: FakeService) -> None:
    async with worker(shared, service) as works:
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        await works.restart()
        async with Client(shared.settings) as client:
            await client.command("mail-0", Reject(operation_id="1", reason="not now"))
            assert await client.result("mail-0", str, timeout=20) == "Rejected"
    assert (await service.counts()).names == {}


async def test_a_yes_waits_until_its_task_can_go_on(shared: Server, service: FakeService) -> None:
    """Nobody can run the task when the answer comes: the answer is kept, is shown as such, and is used later."""
    async with worker(shared, service) as works, Client(shared.settings, by="ann") as client:
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        async with WorkerProcess(shared, "tests.chaos.apps:app", service=service):
            works.kill()
            await works.exited()
            await client.command("mail-0", Approve(operation_id="1"))
            ledger = await client.operations("mail-0")
            assert [str(one.status) for one in ledger.operations] == ["awaiting_approval"]
            assert [(word.verb, word.by) for word in ledger.words] == [("approve", "ann")]
            await works.restart()
            assert await client.result("mail-0", str, timeout=20) == "sent 1"
    assert (await service.counts()).names == {"send_mail": 1}


async def test_what_fails_behind_an_approved_effect_repeats_neither_effect_nor_question(
    shared: Server, service: FakeService
) -> None:
    await service.behave("fail", name="post", times=3, status=503)
    async with worker(shared, service), Client(shared.settings) as client:
        tasks = await submit_many(shared, "mail_and_post", 1)
        await until(shared, PAUSED)
        await client.command("mail_and_post-0", Approve(operation_id="1"))
        await wait_all_final(shared, tasks)
    assert (await service.counts()).names == {"send_mail": 1, "post": 1}
    asked = await fetch(shared, "select 1 from outlive_store.fact where type = 'approval' and status = 'asked'")
    assert len(asked) == 1


async def test_a_thread_that_may_still_send_keeps_its_task_from_others_until_its_process_ends(
    shared: Server, service: FakeService
) -> None:
    """SIGTERM hands tasks back; not this one: the next worker would send beside the thread."""
    async with worker(shared, service, OUTLIVE_GRACE="0.5") as leaving:
        tasks = await submit_many(shared, "stuck", 1)
        await until(shared, "select count(*) = 1 from outlive.operation where status = 'unknown'")
        leaving.terminate()
        assert await leaving.exited() == 0
        (row,) = await fetch(shared, "select owner is not null as held, status from outlive_store.task")
        assert tuple(row) == (True, "running") and "not handed back: a thread of it still runs" in leaving.log
        async with worker(shared, service, EFFECTS_STUCK="0"):
            await wait_all_final(shared, tasks)
    assert (await service.counts()).names == {"slow_ticket": 1}


async def test_a_yes_is_used_once(shared: Server, service: FakeService) -> None:
    async with worker(shared, service) as works:
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        assert (await service.counts()).names == {}
        async with Client(shared.settings, by="ann") as client:
            (reason,) = (await client.get("mail-0")).reasons
            assert reason.do == "outlive approve mail-0 1"
            assert "one mail to you@example.com" in reason.message
            await works.restart()  # a fresh process knows nothing but the table
            await client.command("mail-0", Approve(operation_id="1"))
            assert await client.result("mail-0", str, timeout=20) == "sent 1"
            with pytest.raises(CommandRefused):
                await client.command("mail-0", Reject(operation_id="1"))
        assert (await service.counts()).names == {"send_mail": 1}
        events = await fetch(shared, "select status from outlive_store.fact where type = 'approval' order by seq")
        assert [row["status"] for row in events] == ["asked", "given", "used"]
        await assert_progress_gapless(shared, ["mail-0"])


@pytest.mark.parametrize("point", some(["intent.before_commit", *KILLED], "intent.after_commit", "effect.after"))
async def test_killed_after_a_yes_is_one_effect(shared: Server, service: FakeService, point: str) -> None:
    async with worker(shared, service, f"{point}=kill", EFFECTS_SETTLE="0.2") as killed:
        tasks = await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        async with Client(shared.settings) as client:
            await client.command("mail-0", Approve(operation_id="1"))
        await killed.exited()
        await killed.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"send_mail": 1}
        used = await fetch(shared, "select 1 from outlive_store.fact where type = 'approval' and status = 'used'")
        assert len(used) == 1
        await assert_progress_gapless(shared, tasks)


async def test_a_no_is_a_stored_failure_of_the_step(shared: Server, service: FakeService) -> None:
    async with worker(shared, service):
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        async with Client(shared.settings) as client:
            await client.command("mail-0", Reject(operation_id="1", reason="not now"))
            assert await client.result("mail-0", str, timeout=20) == "Rejected"
        assert (await service.counts()).names == {}


async def test_silence_is_a_visible_no(shared: Server, service: FakeService) -> None:
    async with worker(shared, service, EFFECTS_TTL="1.5"):
        tasks = await submit_many(shared, "mail", 1)
        await wait_all_final(shared, tasks)
        async with Client(shared.settings) as client:
            assert await client.result("mail-0", str) == "ApprovalExpired"
        assert (await service.counts()).names == {}


async def test_nothing_runs_between_two_answers(shared: Server, service: FakeService) -> None:
    async with worker(shared, service):
        await submit_many(shared, "two_mails", 1)
        await until(shared, PAUSED)
        async with Client(shared.settings) as client:
            first, second = (await client.get("two_mails-0")).reasons
            await client.command("two_mails-0", Approve(operation_id=str(first.step_id), digest=first.digest))
            assert [reason.step_id for reason in (await client.get("two_mails-0")).reasons] == [second.step_id]
            with pytest.raises(CommandRefused):
                await client.command("two_mails-0", Approve(operation_id=str(second.step_id), digest="0" * 32))
            assert (await service.counts()).names == {}
            await client.command("two_mails-0", Approve(operation_id=str(second.step_id), digest=second.digest))
            assert await client.result("two_mails-0", int, timeout=20) == 2
        assert (await service.counts()).names == {"send_mail": 2}


async def test_cancelled_while_waiting_for_a_yes_calls_nothing(shared: Server, service: FakeService) -> None:
    async with worker(shared, service):
        await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        async with Client(shared.settings) as client:
            await client.cancel("mail-0")
            assert (await client.get("mail-0")).status is Status.CANCELLED
            with pytest.raises(CommandRefused):
                await client.command("mail-0", Approve(operation_id="1"))
        assert (await service.counts()).names == {}
