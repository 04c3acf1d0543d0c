"""`cancel --compensate`: what a task did is undone, newest first, each once whatever dies; what cannot be is told."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outlive.actors import App, Client, TaskCancelled
from outlive.actors.testing import FakeService, Server
from outlive.actors.testing.fake_service import URL_VARIABLE
from outlive.protocol.answers import Code
from outlive.protocol.commands import Cancel
from outlive.protocol.effects import Effects
from outlive.protocol.errors import CommandRefused
from outlive.protocol.task import Status
from tests.actors.scene import events, ledger, row_soon, serving, soon, status_soon, told
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    some,
    submit_many,
    until,
    wait_all_final,
)
from tests.chaos.undo_app import app, trip, two_runs

APP = "tests.chaos.undo_app:app"
WAITS = "select 1 from task where task_id = $1 and waiting_for like 'signal%' and ($2 or owner is null)"


@asynccontextmanager
async def undoing(
    server: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> AsyncGenerator[Client]:
    monkeypatch.setenv(URL_VARIABLE, service.url)
    async with serving(app, server, **settings) as client:
        yield client


async def done(server: Server, client: Client, calls: Sequence[str], *, left: bool = False, task_id: str = "t") -> None:
    """Have a task make these calls and wait, in memory or `left` by its worker."""
    await client.submit(trip.with_options(task_id=task_id), list(calls))
    await row_soon(server, WAITS, task_id, not left)


async def ended(client: Client, task_id: str = "t") -> Effects:
    with pytest.raises(TaskCancelled) as cancelled:
        await client.handle(task_id).result(30)
    assert cancelled.value.effects is not None
    return cancelled.value.effects


async def order(service: FakeService) -> list[tuple[str, Any]]:
    """What was done outside, in order, with its body."""
    return [(effect.name, effect.body) for effect in await service.effects()]


@pytest.mark.parametrize("left", [False, True])
async def test_what_happened_is_undone_newest_first(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    async with undoing(shared, service, monkeypatch, **({"linger": 0.0} if left else {})) as client:
        await done(shared, client, ["book", "charge", "post", "book"], left=left)
        assert (await client.cancel("t", compensate=True)).code is Code.APPLIED
        effects = await ended(client)
        assert effects.counts == {"undone": 3, "happened": 1}
        assert [(one.step_id, one.name, one.outcome, one.detail) for one in effects.listed] == [
            ("3", "post", "happened", "no compensator"),
            ("1", "book", "undone", ""),
            ("2", "charge", "undone", ""),
            ("4", "book", "undone", ""),
        ]
        assert (await order(service))[4:] == [
            ("unbook", {"booking": 4, "key": "default/t:4:1", "what": "book 3"}),
            ("refund", {"charge": 2}),
            ("unbook", {"booking": 1, "key": "default/t:1:1", "what": "book 0"}),
        ]
        assert [entry for entry in await ledger(shared, "t") if "undo" in entry[0]] == [
            ("undo-1", "succeeded", 1), ("undo-2", "succeeded", 1), ("undo-4", "succeeded", 1),
        ]  # fmt: skip
        last = (await events(shared, "t"))[-1]
        assert last["message"] == (
            "Cancelled by tester. Nothing further was started. Stays: post (step 3: no compensator). "
            "Undone: book (step 1), charge (step 2), book (step 4)."
        )
        assert last["final"] and last["effects"]["counts"] == {"undone": 3, "happened": 1}


POINTS = ["intent.before_commit", "intent.after_commit", "effect.before", "effect.after", "outcome.before_commit",
          "outcome.after_commit"]  # fmt: skip


@pytest.mark.parametrize("nth", [5, *(pytest.param(each, marks=pytest.mark.slow) for each in (4, 6))])
@pytest.mark.parametrize("point", some(POINTS, "intent.after_commit", "effect.after", "outcome.before_commit"))
async def test_a_death_while_undoing_neither_skips_one_nor_does_it_twice(
    shared: Server, service: FakeService, point: str, nth: int
) -> None:
    async with (
        WorkerProcess(shared, APP, service=service, failpoints=f"{point}=kill@{nth}") as worker,
        Client(shared.settings, by="ann") as client,
    ):
        await submit_many(shared, "trip", 1, {"calls": ["book"] * 3})
        await until(shared, "select count(*) = 1 from outlive.task where waiting_for like 'signal%'")
        await client.command("trip-0", Cancel(compensate=True))
        await worker.exited()
        await worker.restart()
        effects = await ended(client, "trip-0")
        assert effects.counts == {"undone": 3}
        await assert_effects_once(service, 6)
        undone = [body["booking"] for name, body in await order(service) if name == "unbook"]
        assert undone == [3, 2, 1]
        assert (await events(shared, "trip-0"))[-1]["message"].startswith("Cancelled by ann.")
        await assert_progress_gapless(shared, ["trip-0"])


@pytest.mark.parametrize("point", ["final.before_commit", "publish.after"])
async def test_a_death_before_and_after_the_undoing_loses_no_wish(
    shared: Server, service: FakeService, point: str
) -> None:
    async with (
        WorkerProcess(shared, APP, service=service) as worker,
        Client(shared.settings, by="ann") as client,
    ):
        await submit_many(shared, "trip", 1, {"calls": ["book"] * 3})
        await until(shared, "select count(*) = 1 from outlive.task where waiting_for like 'signal%'")
        await client.command("trip-0", Cancel(compensate=True))
        if point == "publish.after":
            worker.kill()
        await worker.restart()
        await wait_all_final(shared, ["trip-0"], status="cancelled")
        await assert_effects_once(service, 6)


async def test_a_lost_answer_while_undoing_follows_what_the_compensator_declares(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await done(shared, client, ["charge", "book"])
        await service.behave("lose_answer", name="unbook")
        await service.behave("lose_answer", name="refund")
        await client.cancel("t", compensate=True)
        await status_soon(shared, "t", "paused")  # unbook was asked about; nobody knows of refund
        record = await client.get("t")
        assert record.cancelling and record.compensating
        assert [(reason.reason, reason.do) for reason in record.reasons] == [
            ("outcome_unknown", "outlive resolve t undo-1")
        ]
        assert (await service.counts()).names == {"charge": 1, "book": 1, "unbook": 1, "refund": 1}
        await client.resolve("t", "undo-1", "happened", 4, reason="seen in the bank's list")
        assert (await ended(client)).counts == {"undone": 2}
        assert (await service.counts()).names == {"charge": 1, "book": 1, "unbook": 1, "refund": 1}


async def test_an_undoing_that_did_not_happen_is_sent_again_under_a_new_key(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await done(shared, client, ["charge"])
        await service.behave("drop", name="refund")
        await client.cancel("t", compensate=True)
        await status_soon(shared, "t", "paused")
        await client.resolve("t", "undo-1", "did_not_happen", new_operation=True)
        assert (await ended(client)).counts == {"undone": 1}
        assert [effect.key for effect in await service.effects(name="refund")] == ["default/t:undo-1:2"]


async def test_a_compensator_may_want_a_yes(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        for task_id, answer in (("yes", client.approve), ("no", client.reject)):
            await done(shared, client, ["book", "hire"], task_id=task_id)
            await client.cancel(task_id, compensate=True)
            await status_soon(shared, task_id, "paused")
            assert (await client.get(task_id)).needs == [f"outlive approve {task_id} undo-2"]
            await answer(task_id, "undo-2")
        assert (await ended(client, "yes")).counts == {"undone": 2}
        effects = await ended(client, "no")
        assert effects.counts == {"undone": 1, "undo_failed": 1}
        assert "refused by tester" in effects.of("undo_failed")[0].detail
        assert (await service.counts()).names == {"book": 2, "hire": 2, "dismiss": 1, "unbook": 2}


async def test_what_cannot_be_undone_is_told_and_the_others_are(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await done(shared, client, ["book", "open_door", "book"])
        await client.cancel("t", compensate=True)
        effects = await ended(client)
        assert effects.counts == {"undone": 2, "undo_failed": 1}
        assert effects.listed[0].detail == "the door open_door 1 is not ours"
        assert "Could not be undone: open_door (step 2): the door open_door 1 is not ours" in await told(shared, "t")


@pytest.mark.parametrize(("name", "counts"), [("book", {"undone": 2}), ("charge", {"undone": 1, "unknown": 1})])
async def test_an_unknown_effect_is_undone_only_when_it_is_found_to_have_happened(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch, name: str, counts: dict[str, int]
) -> None:
    async with undoing(shared, service, monkeypatch, grace=0.3) as client:
        await service.behave("hang", name=name, after=1 if name == "book" else 0, seconds=1.5)
        await client.submit(trip.with_options(task_id="t"), ["book", name])
        await soon(lambda: _arrived(service, name, 2 if name == "book" else 1))
        await client.cancel("t", compensate=True)
        assert (await ended(client)).counts == counts
        names = (await service.counts()).names
        assert names == ({"book": 2, "unbook": 2} if name == "book" else {"book": 1, "charge": 1, "unbook": 1})


async def _arrived(service: FakeService, name: str, count: int) -> bool:
    return (await service.counts()).names.get(name, 0) >= count


async def test_effects_of_earlier_runs_are_undone_too(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await client.submit(two_runs.with_options(task_id="t"), 1)
        await row_soon(shared, WAITS, "t", True)
        await client.cancel("t", compensate=True)
        assert (await ended(client)).counts == {"undone": 2}
        assert [body["what"] for name, body in await order(service) if name == "unbook"] == ["run 2", "run 1"]


async def test_a_failed_task_can_be_undone_and_an_ended_one_is_told_that_it_is_too_late(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await client.submit("breaks", task_id="t")
        await status_soon(shared, "t", "failed")
        with pytest.raises(CommandRefused, match="--compensate"):
            await client.cancel("t")
        await client.cancel("t", compensate=True)
        assert (await ended(client)).counts == {"undone": 1}
        with pytest.raises(CommandRefused, match="outlive receipt t") as refused:
            await client.cancel("t", compensate=True)
        assert refused.value.answer.code is Code.TOO_LATE


async def test_a_wish_without_a_worker_waits_for_one_and_can_be_taken_back(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch, linger=0.0) as client:
        await done(shared, client, ["book"], left=True, task_id="back")
        await done(shared, client, ["book"], left=True, task_id="on")
    async with serving(App("other"), shared) as client:  # a worker without the kind
        for task_id in ("back", "on"):
            await client.cancel(task_id, compensate=True)
            record = await client.get(task_id)
            assert (record.status, record.cancelling, record.compensating) == (Status.RUNNING, True, True)
        why = await client.why("on")
        assert "what it did is undone, newest first" in why
        assert "does not have the kind trip" in why
        again = await client.cancel("back")
        assert "--no-compensate" in again.message
        await client.cancel("back", compensate=False)
        assert (await ended(client, "back")).counts == {"happened": 1}
    async with undoing(shared, service, monkeypatch) as client:
        assert (await ended(client, "on")).counts == {"undone": 1}
    assert (await service.counts()).names == {"book": 2, "unbook": 1}


async def test_undoing_can_be_stopped_while_it_waits_for_a_person(
    shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await done(shared, client, ["book", "hire", "book"])
        await client.cancel("t", compensate=True)
        await status_soon(shared, "t", "paused")
        await client.cancel("t", compensate=False)
        effects = await ended(client)
        assert effects.counts == {"undone": 1, "happened": 2}
        assert (await service.counts()).names == {"book": 2, "hire": 1, "unbook": 1}


async def test_children_undo_their_own(shared: Server, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    async with undoing(shared, service, monkeypatch) as client:
        await client.submit("family", task_id="t")
        waiting = "select 1 from task where parent = 't' and waiting_for like 'signal%' having count(*) = 2"
        await row_soon(shared, waiting)
        await client.cancel("t", compensate=True)
        assert (await ended(client)).counts == {"undone": 1}
        await row_soon(shared, "select 1 from task where parent = 't' and status = 'cancelled' having count(*) = 2")
        assert (await service.counts()).names == {"book": 4, "unbook": 4}
        await assert_effects_once(service, 8)
