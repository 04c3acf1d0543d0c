"""Why a task is where it is, in words: pure text from its record and its circumstances."""

from datetime import datetime
from typing import NamedTuple

from outlive.protocol.plan import ItemStatus, PlanRecord
from outlive.protocol.task import FINAL, Reason, Status, TaskRecord


class Circumstances(NamedTuple):
    """What besides its record explains a task; made by the statement ``why`` of ``store.sql``.

    Attributes:
        now: the database's time, by which all others are meant.
        due_at, mail_at, tell_at, ended_at: of the task.
        host, pid, until, draining, fenced: of the worker that holds it.
        alive: living workers.
        able: those that have the kind and take work.
        free: their free slots.
        deaths: actors or workers that died since the last completed step.
        status_at, message: the last status event.
        name, step_id, status, attempt, started_at: the operation that has no outcome yet.
    """

    now: datetime
    due_at: datetime | None
    mail_at: datetime | None
    tell_at: datetime | None
    ended_at: datetime | None
    host: str | None
    pid: int | None
    until: datetime | None
    draining: bool | None
    fenced: bool | None
    alive: int
    able: int
    free: int
    deaths: int
    status_at: datetime | None
    message: str | None
    name: str | None
    step_id: str | None
    status: str | None
    attempt: int | None
    started_at: datetime | None


def doing(
    status: Status, step: str | None, name: str | None, waiting_for: str | None, until: datetime | None
) -> str | None:
    """Return what a task is doing at the moment, in words; None when it has ended or not begun."""
    if status in FINAL or status is Status.QUEUED:
        return None
    if waiting_for:
        return f"waiting: {waiting_for}" + (f", until {_time(until)}" if until else "")
    if step is None:
        return None
    return f"step {step}" + (f" ({name})" if name else "")


def explain(task: TaskRecord, seen: Circumstances) -> str:
    """Return one paragraph: why, since when, who holds it, what happens next, what a person could do."""
    sentences = [_opening(task, seen)]
    if task.plan is not None:
        sentences.append(_plan(task.plan))
    if seen.deaths and task.status not in FINAL:
        times = "once" if seen.deaths == 1 else f"{seen.deaths} times"
        sentences.append(f"Whoever ran it died {times} since its last completed step.")
    if task.cancelling and task.status not in FINAL:
        undone = ", and what it did is undone, newest first" if task.compensating else ""
        sentences.append(f"A cancel is in progress: no further step starts{undone}.")
    if task.status in FINAL:
        sentences.append(_ended(task))
    elif task.status is Status.PAUSED:
        paused = "\n".join(map(_reason, task.reasons))  # each ends with a command to copy
        sentences += [paused or "It has no reason left and goes on by itself within a second."]
    elif task.owner is not None:
        sentences += _held(task, seen)
    else:
        sentences += _unheld(task, seen)
    return " ".join(sentences)


def _opening(task: TaskRecord, seen: Circumstances) -> str:
    since = seen.ended_at or seen.status_at or task.created_at
    steps = "1 step" if task.done.count == 1 else f"{task.done.count} steps"
    if task.status in {Status.SUCCEEDED, Status.FAILED}:
        return f"Task {task.task_id} ({task.kind}) {task.status} at {_time(since)}, with {steps} done."
    return f"Task {task.task_id} ({task.kind}) is {task.status} since {_time(since)}, with {steps} done."


def _plan(plan: PlanRecord) -> str:
    kept = [item for item in plan.items if item.status is not ItemStatus.DROPPED]
    done = sum(item.status is ItemStatus.DONE for item in kept)
    return f"Of its plan, version {plan.version}, {done} of {len(kept)} items are done."


def _ended(task: TaskRecord) -> str:
    if task.status is Status.FAILED and task.failure is not None:
        at = f" at step {task.failure.step_id}" if task.failure.step_id else ""
        return (
            f"It failed{at}: {task.failure.type}: {task.failure.message}. Nothing runs any more. "
            f"When the cause is mended: outlive retry {task.task_id}"
        )
    return "It has ended: nothing runs any more."


def _reason(reason: Reason) -> str:
    step = f" at step {reason.step_id}" if reason.step_id else ""
    message = f": {reason.headline.rstrip('.')}" if reason.message else ""
    until = f" This wait ends by itself at {_time(reason.until)}." if reason.until else ""
    return (
        f"It waits because of {reason.reason.replace('_', ' ')}{step} since {_time(reason.since)}{message}.{until} "
        f"To go on: {reason.do}"
    )


def _held(task: TaskRecord, seen: Circumstances) -> list[str]:
    if seen.fenced or seen.until is None or seen.until <= seen.now:
        return [f"Its worker ({_worker(task, seen)}) is dead or does not answer.", _next_worker(task, seen)]
    draining = ", which is shutting down and hands it back," if seen.draining else ""
    return [f"Worker {_worker(task, seen)}{draining} has it in memory.", _activity(task, seen)]


def _worker(task: TaskRecord, seen: Circumstances) -> str:
    return f"{seen.pid} on {seen.host}, epoch {task.epoch}" if seen.pid else f"{task.owner}, epoch {task.epoch}"


def _activity(task: TaskRecord, seen: Circumstances) -> str:
    if task.waiting_for:
        return _waits(task)
    if seen.name is not None and seen.started_at is not None:
        return f"Step {seen.step_id}: attempt {seen.attempt} of {seen.name} began at {_time(seen.started_at)}."
    return f"It is at {task.doing}." if task.doing else "It is between two steps."


def _waits(task: TaskRecord) -> str:
    what = task.waiting_for or ""
    until = f" until {_time(task.wait_until)} at the latest" if task.wait_until else ""
    kind, _, name = what.partition(" ")
    match "" if "," in what else kind:
        case "sleep":
            return f"It sleeps{until.removesuffix(' at the latest')} and then goes on by itself."
        case "signal":
            return f"It waits for the signal {name}{until}. To send it: outlive signal {task.task_id} {name} VALUE"
        case "child":
            return f"It waits for its child task {name}{until}. To look at that: outlive why {name}"
        case _:
            return f"It waits for {what}{until}."


def _unheld(task: TaskRecord, seen: Circumstances) -> list[str]:
    if seen.due_at is None:
        if task.waiting_for and task.waiting_for != "worker":
            return [_waits(task), "No worker needs to hold it until then."]
        return ["Nothing is due for it; the next command wakes it."]
    if seen.due_at > seen.now:
        waits = _waits(task) if task.waiting_for and task.waiting_for != "worker" else ""
        return [*filter(None, [waits]), f"It is due at {_time(seen.due_at)}; no worker needs to hold it until then."]
    return [f"It has been due since {_time(seen.due_at)} and no worker holds it.", _next_worker(task, seen)]


def _next_worker(task: TaskRecord, seen: Circumstances) -> str:
    if not seen.alive:
        return "No worker is alive. Start one: outlive worker APP"
    if not seen.able:
        has = "The only living worker does not have" if seen.alive == 1 else f"None of {seen.alive} living workers has"
        return f"{has} the kind {task.kind} and takes work. Start one that has: outlive worker APP"
    if not seen.free:
        return (
            f"All slots of the workers that have the kind {task.kind} are taken; it begins when one is free. More slots: "
            "start another worker"
        )
    return f"A worker that has the kind {task.kind} takes it within moments."


def _time(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%SZ}" if at else "?"
