"""The eight faults, each played on two tasks of one kind: one goes its way, the other one is taken over by a person."""

import functools
import time
from collections.abc import Mapping
from typing import Any, Final

from outlive.actors.chaoskit.evidence import Expected, TakeOver
from outlive.actors.chaoskit.exam import Played
from outlive.actors.chaoskit.scene import Scene
from outlive.actors.testing.clock import virtual_time
from outlive.protocol import ids
from outlive.protocol.commands import Approve, Resolve
from outlive.protocol.errors import CommandRefused
from outlive.protocol.task import Status

GOES: Final = "goes-its-way"
TAKEN: Final = "taken-over"
_HOUR: Final = 3600.0
_DAY: Final = 86_400.0
_BOUGHT: Final = {"order": 2}
_BY_PHONE: Final = {"phone": 1, "order": 1}


def _step(event: Mapping[str, Any], status: str, name: str = "") -> bool:
    return bool(event["type"] == "step" and event["status"] == status and name in event["name"])


def _resumed(event: Mapping[str, Any]) -> bool:
    return bool(event["type"] == "resumed")


_lost: Final = functools.partial(_step, status="unknown")


async def stand(where: Scene, task_id: str) -> dict[str, Any]:
    """Tell how a task stands when a person looks at it: status, what it asks, and what has happened outside."""
    record = await where.client.get(task_id)
    needs = [reason.do for reason in record.reasons]
    asked = " ".join(reason.message for reason in record.reasons)
    return {"status": record.status, "needs": needs, "asked": asked, "outside": await where.effects(task_id)}


async def _resolve(where: Scene, task_id: str) -> tuple[dict[str, Any], str]:
    """A person finds the effect outside and says that it happened; gives how the task stood, and what was typed."""
    await where.until_paused(task_id, "outcome_unknown")
    stood = await stand(where, task_id)
    (record,) = (await where.client.get(task_id)).reasons
    (number,) = await where.effects(task_id)
    verdict = Resolve(
        operation_id=str(record.step_id), verdict="happened", result=number, reason="seen in the shop's list"
    )
    await where.client.command(task_id, verdict)
    return stood, f"{record.do} --happened {number}"


async def answer_lost(where: Scene) -> Played:
    """The shop does it and hangs up. One tool can ask what became of it; after the other one only a person can tell."""
    await where.service.behave("lose_answer", name="order")
    await where.service.behave("lose_answer", name="phone")
    await where.worker()
    await where.client.submit("purchase", {"item": "paper"}, task_id=GOES)
    await where.client.submit("purchase", {"item": "pens", "by_phone": True}, task_id=TAKEN)
    stood, typed = await _resolve(where, TAKEN)
    await where.until_ended(GOES, TAKEN)
    told = {"the answer was lost": _lost}
    goes = Expected(task_id=GOES, effects=_BOUGHT, told=told)
    taken = Expected(task_id=TAKEN, effects=_BY_PHONE, told=told)
    attempts = [await where.rows("attempts", where.tenant, task.task_id) for task in (goes, taken)]
    lost = [[row["step_id"] for row in rows if "lost" in str(row["reason"])] for rows in attempts]
    return Played(
        happened={"answers that the shop did not send, by step": dict(zip((GOES, TAKEN), lost, strict=True))},
        struck=all(lost), tasks=[goes, taken],
        take_over=TakeOver(task=taken, typed=[typed], verbs=["resolve"], before=stood),
    )  # fmt: skip


async def worker_dies(where: Scene) -> Played:
    """SIGKILL when the tool has returned and nothing is recorded; another process goes on."""
    first = await where.worker(failpoints="effect.after=kill")
    await where.client.submit("purchase", {"item": "paper"}, task_id=GOES)
    killed = [await first.exited()]
    second = await where.worker(failpoints="effect.after=kill@2")  # its first effect is the wrapping
    await where.until_ended(GOES)
    await where.client.submit("purchase", {"item": "pens", "by_phone": True}, task_id=TAKEN)
    killed.append(await second.exited())
    await second.restart()
    stood, typed = await _resolve(where, TAKEN)
    await where.until_ended(TAKEN)
    told = {"another worker went on": _resumed}
    goes = Expected(task_id=GOES, effects=_BOUGHT, told=told)
    taken = Expected(task_id=TAKEN, effects=_BY_PHONE, told=told)
    return Played(
        happened={"exit codes of the killed workers": killed}, struck=killed == [-9, -9], tasks=[goes, taken],
        take_over=TakeOver(task=taken, typed=[typed], verbs=["resolve"], before=stood),
    )  # fmt: skip


async def message_twice(where: Scene) -> Played:
    """Submit and signal are delivered twice; a pause comes once more after it was taken back."""

    async def deliver_twice(task_id: str, verb: str, fields: Mapping[str, Any]) -> list[int]:
        said = {"command_id": ids.new_id(), **fields}
        sequences = [await where.deliver(task_id, verb, said) for _ in range(2)]
        await where.until_read(sequences[-1])
        return sequences

    twice: dict[str, list[int]] = {}
    early: dict[str, int] = {}
    await where.worker()
    await where.until_offered("errand")
    for task_id in (GOES, TAKEN):
        twice[f"submit {task_id}"] = await deliver_twice(task_id, "submit", {"kind": "errand", "input": {}})
        await where.until_done_outside(task_id, 1)
    stood = await stand(where, TAKEN)
    pause = {"command_id": "pause-1", "reason": "let me look"}
    sequences = [await where.deliver(TAKEN, "pause", pause)]
    await where.until_paused(TAKEN, "operator")
    await where.client.resume(TAKEN)
    sequences.append(await where.deliver(TAKEN, "pause", pause))
    await where.until_read(sequences[-1])
    twice["pause, the second one after the resume"] = sequences
    for sheet in (1, 2):
        for task_id in (GOES, TAKEN):
            named = {"name": "go", "value": sheet}
            twice[f"signal {sheet} {task_id}"] = await deliver_twice(task_id, "signal", named)
            await where.until_done_outside(task_id, 1 + sheet)
            early[f"{task_id} after signal {sheet}"] = len(await where.effects(task_id))
    await where.until_ended(GOES, TAKEN)
    goes = Expected(task_id=GOES, effects={"order": 3})
    taken = Expected(
        task_id=TAKEN, effects={"order": 3}, told={"the pause, once": lambda event: event.get("status") == "paused"}
    )
    early_ones = [text for text, count in early.items() if count != 1 + int(text[-1])]
    return Played(
        happened={"both places in the command stream": twice, "orders after each signal": early},
        struck=all(a < b for a, b in twice.values()), tasks=[goes, taken],
        take_over=TakeOver(
            task=taken, typed=[f"outlive pause {TAKEN}", f"outlive resume {TAKEN}"],
            verbs=["pause", "resume", "signal", "signal"], before=stood,
            check=f"a signal counted twice: {early_ones}" if early_ones else None,
        ),
    )  # fmt: skip


async def cancelled_before_risk(where: Scene) -> Played:
    """A person cancels while the transfer waits for a yes; a yes that comes later is too late. Another one is approved."""
    await where.worker()
    for task_id in (GOES, TAKEN):
        await where.client.submit("transfer", {"cents": 1200}, task_id=task_id)
        await where.until_paused(task_id, "approval")
    (reason,) = (await where.client.get(GOES)).reasons
    stood = await stand(where, TAKEN)
    await where.client.cancel(GOES, "not now")
    late = await _refused(where, GOES, Approve(operation_id=str(reason.step_id)))
    (reason,) = (await where.client.get(TAKEN)).reasons
    await where.client.approve(TAKEN, str(reason.step_id), digest=reason.digest)
    await where.until_ended(GOES, TAKEN)
    goes = Expected(
        task_id=GOES, effects={"order": 1}, status=Status.CANCELLED, orders=None, not_done={"wire": "awaiting_approval"},
        told={"what happened and what did not": _honest},
    )  # fmt: skip
    used = {
        f"the yes is {status}": functools.partial(_approval, status=status) for status in ("asked", "given", "used")
    }
    taken = Expected(task_id=TAKEN, effects={"order": 1, "wire": 1}, told=used)
    return Played(
        happened={"the yes after the cancel was answered": late}, struck=late is not None, tasks=[goes, taken],
        take_over=TakeOver(task=taken, typed=[str(reason.do)], verbs=["approve"], before=stood),
    )  # fmt: skip


def _honest(event: Mapping[str, Any]) -> bool:
    """The last event of the cancel lists the order as having happened, and the transfer as never agreed to."""
    if not event.get("final") or "effects" not in event:
        return False
    listed = {one["name"]: one["outcome"] for one in event["effects"]["listed"]}
    return listed == {"order": "happened", "wire": "not_approved"}


def _approval(event: Mapping[str, Any], status: str) -> bool:
    return bool(event["type"] == "approval" and event["status"] == status)


async def _refused(where: Scene, task_id: str, command: Any) -> str | None:
    try:
        await where.client.command(task_id, command)
    except CommandRefused as refused:
        return f"{refused.answer.code}: {refused.answer.message}"
    return None


async def throttled(where: Scene) -> Played:
    """The shop wants to be left alone for the best part of an hour, and then for a day: the database's clock jumps."""
    await where.service.behave("throttle", name="order", seconds=0.9 * _HOUR)
    await where.worker(OUTLIVE_LINGER="0")
    async with virtual_time(where.server.postgres_dsn) as clock:
        await where.client.submit("purchase", {"item": "paper"}, task_id=GOES)
        await where.until("the task waits for the shop", lambda: _left_waiting(where, GOES))
        waiting = (await where.service.counts()).requests
        await clock.advance(0.9 * _HOUR + 1)
        await where.until_ended(GOES)
        await where.service.behave("throttle", name="order", seconds=_DAY)
        await where.client.submit("purchase", {"item": "pens"}, task_id=TAKEN)
        await where.until_paused(TAKEN, "throttled")
        stood = await stand(where, TAKEN)
        await where.client.resume(TAKEN)
        await where.until_ended(TAKEN)
    goes = Expected(task_id=GOES, effects=_BOUGHT, told={"until when it waits": _waits})
    taken = Expected(task_id=TAKEN, effects=_BOUGHT, told={"that it is throttled": _throttled})
    requests = (await where.service.counts()).requests
    refused = {key: count for key, count in requests.items() if count == 2}
    return Played(
        happened={"requests while it waited": dict(waiting), "requests in all, by key": dict(requests)},
        struck=len(refused) == 2 and list(waiting.values()) == [1], tasks=[goes, taken],
        take_over=TakeOver(task=taken, typed=[f"outlive resume {TAKEN}"], verbs=["resume"], before=stood),
    )  # fmt: skip


async def _left_waiting(where: Scene, task_id: str) -> bool:
    task = await where.task(task_id)
    return bool(task) and task["owner"] is None and task["wait_until"] is not None


def _waits(event: Mapping[str, Any]) -> bool:
    return _step(event, "waiting", "order") and bool(event.get("wait_until"))


def _throttled(event: Mapping[str, Any]) -> bool:
    return any(reason["reason"] == "throttled" for reason in event.get("reasons", []))


async def two_workers(where: Scene) -> Played:
    """The owner is frozen between effect and record, for longer than its lease; it goes on when another has its tasks."""
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}
    first = await where.worker(failpoints=f"effect.after=sleep:{_HELD:g}", **short)
    for task_id in (GOES, TAKEN):
        await where.client.submit("purchase", {"item": "paper"}, task_id=task_id)
    await where.until_done_outside(GOES, 1)
    await where.until_done_outside(TAKEN, 1)
    frozen_at = time.monotonic()
    (me,) = await where.rows("worker", first.pid)
    first.stop()
    early = [await where.task(task_id) for task_id in (GOES, TAKEN)]
    stood = {"status": early[1]["status"], "epoch": early[1]["epoch"], "outside": await where.effects(TAKEN)}
    await where.worker(**short)
    paused = await where.deliver(TAKEN, "pause", {"command_id": "pause-1", "reason": "its worker is frozen"})
    await where.until_read(paused)
    await where.until_paused(TAKEN, "operator")
    await where.client.resume(TAKEN)
    await where.until_ended(GOES, TAKEN)
    await where.until("the frozen worker's write is due", lambda: _past(frozen_at + _HELD))
    (before,) = await where.rows("left_by", me["incarnation"])
    first.cont()  # what it was about to record comes now, with the epoch that it had
    code = await first.exited()
    (after,) = await where.rows("left_by", me["incarnation"])
    late = [await where.task(task_id) for task_id in (GOES, TAKEN)]
    epochs = [(one["epoch"], two["epoch"]) for one, two in zip(early, late, strict=True)]
    told = {"another worker went on": _resumed}
    goes, taken = (Expected(task_id=task_id, effects=_BOUGHT, told=told) for task_id in (GOES, TAKEN))
    return Played(
        happened={"epochs while frozen and in the end": epochs, "exit code of the frozen worker": code,
                  "what it holds and has written": [before, after]},
        struck=all(one < two for one, two in epochs) and code == 1, tasks=[goes, taken],
        take_over=TakeOver(
            task=taken, typed=[f"outlive pause {TAKEN}", f"outlive resume {TAKEN}"], verbs=["pause", "resume"], before=stood,
            check=None if before == after else f"the frozen worker wrote: {before} became {after}",
        ),
    )  # fmt: skip


_HELD: Final = 6.0
"""Seconds for which the frozen worker stands between effect and record: longer than its lease of 3."""


async def _past(moment: float) -> bool:
    return time.monotonic() > moment
