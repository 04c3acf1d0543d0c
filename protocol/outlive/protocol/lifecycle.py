"""The only way a task's status changes: the transition table, and what each command does in each state.

Pure: the owner of a running task and the clerk (for tasks without an actor) call the same `apply` and write what it
decides. With an actor in memory a pause or a cancel does not change the status: the decision says what the actor must
do (`Decision.stop`), and the actor changes the status when it has done it.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from outlive.protocol import keys, steps
from outlive.protocol.answers import Code
from outlive.protocol.commands import (
    AnyCommand,
    Approve,
    Cancel,
    ChildEnded,
    EditPlan,
    Internal,
    Pause,
    Reject,
    Resolve,
    Resume,
    Retry,
    Signal,
    Skip,
    Submit,
)
from outlive.protocol.task import Reason, ReasonCode, Status

TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = MappingProxyType({
    Status.QUEUED: frozenset({Status.RUNNING, Status.PAUSED, Status.FAILED, Status.CANCELLED}),
    Status.RUNNING: frozenset({Status.SUCCEEDED, Status.FAILED, Status.PAUSED, Status.CANCELLED}),
    Status.PAUSED: frozenset({Status.RUNNING, Status.QUEUED, Status.FAILED, Status.CANCELLED}),
    Status.FAILED: frozenset({Status.RUNNING}),
    Status.SUCCEEDED: frozenset(),
    Status.CANCELLED: frozenset(),
})  # fmt: skip
"""Every change of status that may happen; from `paused` to `queued` only where the task never started."""

RESUMABLE: Final = frozenset({
    ReasonCode.OPERATOR, ReasonCode.QUARANTINED, ReasonCode.VERSION_MISMATCH, ReasonCode.THROTTLED,
})  # fmt: skip
"""The reasons that `resume` takes away; the others end by an answer to what they ask."""

ENDED: Final = frozenset({Status.SUCCEEDED, Status.CANCELLED})
"""Final for ever; a failed task may be reopened by a person."""

_WAITS: Final = frozenset({"ask", "sleep", "version"})
"""Names of steps that call no tool, besides those of several words."""

Stop: TypeAlias = Literal["", "pause", "cancel"]
"""What an actor must do about its flow: go on, stop before the next step, or stop for good."""


class IllegalTransition(ValueError):
    """A status change that the table does not have; a mistake in the program, never of a user."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a task to decide a command.

    Attributes:
        owned: an actor is in memory.
        started: a worker has begun it at least once.
        cancelling: a cancel was accepted and is being carried out.
        compensating: what the task did is undone before it ends as cancelled.
        ended_at: when it reached a final status.
        step: how the step stands that a command names: completed, failed, waiting, ...; None = nothing is known of it.
        name: of that step: a tool's, or what it waited for.
        result: what it returned, as JSON, where it is completed and that is short.
        operation: the number of its latest operation; "" = it has none, as far as known.
        plans: its plans may be changed by a person, as those of agents.
        plan_version: of its last plan; 0 without one.
        answered: who answered the question before that an approve, reject, resolve or answer is about, as a sentence.
    """

    task_id: str
    status: Status
    reasons: tuple[Reason, ...] = ()
    owned: bool = False
    started: bool = False
    cancelling: bool = False
    compensating: bool = False
    ended_at: datetime | None = None
    step: str | None = None
    name: str = ""
    result: str = ""
    operation: str = ""
    answered: str = ""
    plans: bool = False
    plan_version: int = 0


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What a command does: the answer, and the task's state after it (unchanged where it is refused).

    Attributes:
        code, message: the answer.
        status, reasons, cancelling, compensating: the state to write.
        wake: a worker with the task's code is wanted now (only for tasks without an actor).
        stop: the state in which an actor must be from now on; ``""`` takes back a pause that was not carried out yet.
    """

    code: Code
    message: str
    status: Status
    reasons: tuple[Reason, ...]
    cancelling: bool
    compensating: bool = False
    wake: bool = False
    stop: Stop = ""

    @property
    def ok(self) -> bool:
        """True when the command was applied, now or before."""
        return self.code in {Code.APPLIED, Code.DUPLICATE}


def check_transition(old: Status, new: Status) -> None:
    """Raise `IllegalTransition` unless a task may go from `old` to `new` (or stays what it is)."""
    if new is not old and new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(TRANSITIONS[old])) or "nothing"
        raise IllegalTransition(f"a {old} task cannot become {new}; it may become {allowed}")


def apply(facts: Facts, command: AnyCommand | Internal, *, now: datetime) -> Decision:
    """Decide a command.

    Args:
        facts: the task's state; after a command it is changed as decided before the next one is applied.
        command: one that was read from the task's mailbox.
        now: the database's time, for the reasons that it makes.
    """
    if facts.status in ENDED and not isinstance(command, Submit):
        return _decide(facts, Code.TOO_LATE, f"Task {_ended(facts)}. Nothing was changed.{_stands(facts, command)}")
    match command:
        case Submit():
            return _submit(facts)
        case Pause():
            return _pause(facts, command, now)
        case Resume():
            return _resume(facts, command)
        case Cancel():
            return _cancel(facts, command)
        case Signal(name=name) if steps.is_answer(name):
            return _reply(facts, command)
        case Signal():
            return _signal(facts, f"Signal {command.name!r}")
        case ChildEnded():
            return _signal(facts, f"The end of child {command.child}")
        case _:
            return _take_over(facts, command)


def _submit(facts: Facts) -> Decision:
    if facts.status is Status.QUEUED and not facts.started:
        return _decide(facts, Code.APPLIED, f"Task {facts.task_id} is queued.", wake=True)
    return _decide(facts, Code.DUPLICATE, f"Task {facts.task_id} exists already; it is {facts.status}.")


def _pause(facts: Facts, command: Pause, now: datetime) -> Decision:
    if facts.status is Status.FAILED:
        return _illegal(facts, f"Task {_ended(facts)}: nothing runs that could be paused.")
    if facts.cancelling:
        return _illegal(facts, f"Task {facts.task_id} is being cancelled: nothing new starts.")
    if any(reason.reason is ReasonCode.OPERATOR for reason in facts.reasons):
        return _decide(facts, Code.APPLIED, f"Task {facts.task_id} was paused by an operator already.")
    reason = Reason(
        reason=ReasonCode.OPERATOR,
        since=now,
        do=f"outlive resume {facts.task_id}",
        message=command.reason or (f"paused by {command.by}" if command.by else "paused by an operator"),
    )
    reasons = (*facts.reasons, reason)
    if facts.owned:
        return _decide(facts, Code.APPLIED, f"Task {facts.task_id} pauses before its next step.", reasons=reasons)
    return _decide(
        facts, Code.APPLIED, f"Task {facts.task_id} is paused.", status=Status.PAUSED, reasons=reasons
    )  # fmt: skip


def _resume(facts: Facts, command: Resume) -> Decision:
    if facts.status is Status.FAILED:
        return _illegal(facts, f"Task {_ended(facts)}. When the cause is mended: outlive retry {facts.task_id}")
    wanted = RESUMABLE if command.raise_budget is None else RESUMABLE | {ReasonCode.BUDGET}
    if command.raise_budget is not None and all(reason.reason is not ReasonCode.BUDGET for reason in facts.reasons):
        return _illegal(facts, f"Task {facts.task_id} is {facts.status} and waits for no budget.")
    left = tuple(reason for reason in facts.reasons if reason.reason not in wanted)
    if facts.status is not Status.PAUSED and len(left) == len(facts.reasons):
        return _illegal(facts, f"Task {facts.task_id} is {facts.status}, not paused.")
    if len(left) == len(facts.reasons) > 0:
        return _illegal(facts, f"Task {facts.task_id} was paused by no operator. {_wanted(left)}")
    if facts.status is Status.PAUSED and left:
        return _decide(facts, Code.APPLIED, f"Task {facts.task_id} stays paused. {_wanted(left)}", reasons=left)
    status = facts.status
    if status is Status.PAUSED:
        status = Status.RUNNING if facts.started else Status.QUEUED
    return _decide(facts, Code.APPLIED, f"Task {facts.task_id} goes on.", status=status, reasons=left, wake=True)


def _cancel(facts: Facts, command: Cancel) -> Decision:
    if facts.status is Status.FAILED and not command.compensate:
        return _illegal(
            facts,
            f"Task {_ended(facts)}: nothing runs that could be cancelled. "
            f"To undo what it did: outlive cancel {facts.task_id} --compensate",
        )
    if facts.compensating and command.compensate is not False:
        message = (
            f"Task {facts.task_id} is being cancelled, and what it did is undone. "
            f"To stop that: outlive cancel {facts.task_id} --no-compensate"
        )
        return _decide(facts, Code.APPLIED, message)
    undo = bool(command.compensate) and facts.started
    if facts.owned:
        then = ", then what it did is undone" if undo else ""
        message = f"Task {facts.task_id} is being cancelled: nothing new starts{then}."
        return _decide(facts, Code.APPLIED, message, cancelling=True, compensating=undo)
    if undo:
        message = f"Task {facts.task_id} is being cancelled: nothing new starts, and what it did is undone."
        return _decide(
            facts,
            Code.APPLIED,
            message,
            status=Status.RUNNING,
            reasons=(),
            cancelling=True,
            compensating=True,
            wake=True,
        )
    return _decide(
        facts, Code.APPLIED, f"Task {facts.task_id} is cancelled.", status=Status.CANCELLED, reasons=(),
        cancelling=False, compensating=False,
    )  # fmt: skip


def _stands(facts: Facts, command: AnyCommand | Internal) -> str:
    """Say what is left to do for one who wants an ended task undone."""
    if not isinstance(command, Cancel) or not command.compensate:
        return ""
    return f" What it did stands, and can be undone by hand only: outlive receipt {facts.task_id}"


def _signal(facts: Facts, what: str) -> Decision:
    wakes = facts.status is Status.RUNNING
    message = f"{what} is kept for task {facts.task_id}, which is {facts.status}."
    return _decide(facts, Code.APPLIED, message, wake=wakes)


def _reply(facts: Facts, command: Signal) -> Decision:
    """Answer a question of a step; the first answer counts."""
    if facts.cancelling:
        return _illegal(facts, f"Task {facts.task_id} is being cancelled: nothing new starts.")
    questions = [r for r in facts.reasons if r.reason is ReasonCode.QUESTION and r.step_id is not None]
    asked = next((r for r in questions if steps.answer_signal(r.step_id or "") == command.name), None)
    if asked is None:
        message = f"Task {facts.task_id} asks no question that {command.name} would answer"
        return _stale(facts, f"{message}{': ' + facts.answered if facts.answered else ''}.")
    if not isinstance(command.value, str) or (asked.choices and command.value not in asked.choices):
        wanted = f"with one of: {', '.join(asked.choices)}" if asked.choices else "with a text"
        message = f"Question {asked.step_id} of task {facts.task_id} is answered {wanted}. Nothing was changed."
        return _decide(facts, Code.INVALID, message)
    return _answer(facts, (asked,), f"Question {asked.step_id} is answered{_by(command.by)}.")


def _take_over(facts: Facts, command: Approve | Reject | Resolve | Retry | Skip | EditPlan) -> Decision:
    match command:
        case Approve() | Reject():
            return _consent(facts, command)
        case Resolve():
            return _resolve(facts, command)
        case Retry():
            return _retry(facts, command)
        case Skip():
            return _skip(facts, command)
        case EditPlan():
            return _edit_plan(facts, command)


def _consent(facts: Facts, command: Approve | Reject) -> Decision:
    if facts.cancelling and not (facts.compensating and steps.is_undo(command.operation_id)):
        return _illegal(facts, f"Task {facts.task_id} is being cancelled: nothing new starts.")
    asked = _asked(facts, ReasonCode.APPROVAL, command.operation_id)
    if not isinstance(asked, Reason):
        return asked
    if command.digest and asked.digest and command.digest != asked.digest:
        message = f"Operation {command.operation_id} has other arguments than those of digest {command.digest}"
        return _decide(facts, Code.STALE, f"{message}. Look again: outlive show {facts.task_id}")
    said = "approved" if isinstance(command, Approve) else "rejected"
    return _answer(facts, (asked,), f"Operation {command.operation_id} is {said}{_by(command.by)}.")


def _resolve(facts: Facts, command: Resolve) -> Decision:
    asked = _asked(facts, ReasonCode.OUTCOME_UNKNOWN, command.operation_id)
    if not isinstance(asked, Reason):
        return asked
    said = command.verdict.replace("_", " ")
    if command.new_operation:
        said = f"{said}, sent again under a new key"
    return _answer(facts, (asked,), f"Operation {command.operation_id} is resolved{_by(command.by)}: {said}.")


def _asked(facts: Facts, code: ReasonCode, operation_id: str) -> Reason | Decision:
    """Find the question that a command answers, or refuse it."""
    if facts.status is Status.QUEUED:
        return _illegal(facts, f"Task {facts.task_id} is queued: nothing of it waits for a person yet.")
    if facts.status is Status.FAILED:
        return _illegal(facts, f"Task {_ended(facts)}: nothing of it waits for an answer.")
    step, number = keys.split_operation(operation_id)
    for reason in facts.reasons:
        if (reason.reason, reason.step_id, reason.operation_id) == (code, step, number):
            return reason
    wanted = "an approval" if code is ReasonCode.APPROVAL else "a word on its outcome"
    message = f"Operation {operation_id} of task {facts.task_id} does not wait for {wanted}"
    if facts.operation not in {"", number}:
        return _stale(facts, f"{message}: the current operation of step {step} is {step}:{facts.operation}.")
    return _stale(facts, f"{message}{': ' + facts.answered if facts.answered else ''}.")


def _answer(facts: Facts, answered: tuple[Reason, ...], message: str) -> Decision:
    """Take reasons away; a task that was paused for them alone goes on."""
    left = tuple(reason for reason in facts.reasons if reason not in answered)
    if facts.status is not Status.PAUSED:
        return _decide(facts, Code.APPLIED, message, reasons=left, wake=facts.status is Status.RUNNING)
    if left:
        message = f"{message} Task {facts.task_id} stays paused. {_wanted(left)}"
        return _decide(facts, Code.APPLIED, message, reasons=left)
    message = f"{message} Task {facts.task_id} goes on."
    return _decide(facts, Code.APPLIED, message, status=Status.RUNNING, reasons=(), wake=True)


def _retry(facts: Facts, command: Retry) -> Decision:
    if facts.status is not Status.FAILED:
        hint = f" {_wanted(facts.reasons)}" if facts.reasons else ""
        return _illegal(facts, f"Task {facts.task_id} is {facts.status}: only a failed task is retried.{hint}")
    if (refusal := _settled(facts, command.step_id)) is not None:
        return refusal
    if command.args is None:
        return _reopen(facts, f"Task {facts.task_id} goes on from its checkpoint.")
    if (refusal := _incorrigible(facts, command.step_id or "")) is not None:
        return refusal
    message = f"Task {facts.task_id} goes on from its checkpoint, step {command.step_id} with the arguments given"
    return _reopen(facts, f"{message}{_by(command.by)}.")


def _incorrigible(facts: Facts, step_id: str) -> Decision | None:
    """Refuse other arguments for what has not failed, or is no call of a tool."""
    if facts.step is None:
        return _stale(facts, f"Nothing is known of a step {step_id} of task {facts.task_id} that has failed.")
    if facts.step != "failed":
        message = (
            f"Step {step_id} of task {facts.task_id} is {facts.step}, it has not failed: its effect may have happened"
        )
        return _stale(facts, f"{message}. First have that found out: outlive retry {facts.task_id} {step_id}")
    if " " in facts.name or facts.name in _WAITS:
        message = f"Step {step_id} of task {facts.task_id} is {facts.name}, no call of a tool: it takes no arguments"
        return _decide(facts, Code.INVALID, f"{message}. Nothing was changed.")
    return None


def _skip(facts: Facts, command: Skip) -> Decision:
    if facts.status is Status.QUEUED or facts.cancelling:
        state = "is being cancelled" if facts.cancelling else "is queued"
        return _illegal(facts, f"Task {facts.task_id} {state}: no step of it waits.")
    message = f"Step {command.step_id} is skipped{_by(command.by)}."
    if facts.status is Status.FAILED:
        return _settled(facts, command.step_id) or _reopen(facts, f"{message} Task {facts.task_id} goes on.")
    about = tuple(reason for reason in facts.reasons if reason.step_id == command.step_id)
    if about:
        return _answer(facts, about, message)
    return _settled(facts, command.step_id) or _stale(
        facts, f"Step {command.step_id} of task {facts.task_id} waits for no person."
    )


def _edit_plan(facts: Facts, command: EditPlan) -> Decision:
    if not facts.plans:
        message = "has no plan that a person could change: what it does next is written in its code"
        return _decide(facts, Code.INVALID, f"Task {facts.task_id} {message}. Nothing was changed.")
    if facts.cancelling:
        return _illegal(facts, f"Task {facts.task_id} is being cancelled: nothing new starts.")
    if command.plan_version != facts.plan_version:
        has = f"version {facts.plan_version}" if facts.plan_version else "none yet (version 0)"
        message = f"The plan of task {facts.task_id} is {has}, not version {command.plan_version}"
        return _decide(facts, Code.STALE, f"{message}. Look again: outlive edit-plan {facts.task_id} --show")
    message = f"The plan of task {facts.task_id} is version {facts.plan_version + 1} now{_by(command.by)}"
    if facts.status is Status.FAILED:
        again = f"where it fails at the same step again: outlive retry {facts.task_id}"  # a recorded failure stands
        return _reopen(facts, f"{message}. The task goes on; {again}")
    return _decide(facts, Code.APPLIED, f"{message}; its next decision goes by it.")


def _settled(facts: Facts, step_id: str | None) -> Decision | None:
    """Refuse to touch a step whose result stands."""
    if step_id is None or facts.step is None:
        return None
    if facts.step in {"completed", "skipped"}:
        message = f"Step {step_id} of task {facts.task_id} is {facts.step}: its result stands"
        shown = f": {facts.result}" if facts.result else f". To see it: outlive show {facts.task_id} --all"
        return _decide(facts, Code.STALE, f"{message}{shown}")
    return None


def _reopen(facts: Facts, message: str) -> Decision:
    return _decide(facts, Code.APPLIED, message, status=Status.RUNNING, reasons=(), wake=True)


def _stale(facts: Facts, message: str) -> Decision:
    hint = f" {_wanted(facts.reasons)}" if facts.reasons else ""
    return _decide(facts, Code.STALE, f"{message}{hint}")


def _by(who: str | None) -> str:
    return f" by {who}" if who else ""


def _illegal(facts: Facts, message: str) -> Decision:
    return _decide(facts, Code.ILLEGAL_TRANSITION, message)


def _decide(
    facts: Facts,
    code: Code,
    message: str,
    *,
    status: Status | None = None,
    reasons: tuple[Reason, ...] | None = None,
    cancelling: bool | None = None,
    compensating: bool | None = None,
    wake: bool = False,
) -> Decision:
    status = facts.status if status is None else status
    check_transition(facts.status, status)
    reasons = facts.reasons if reasons is None else reasons
    cancelling = facts.cancelling if cancelling is None else cancelling
    compensating = facts.compensating if compensating is None else compensating
    return Decision(
        code=code,
        message=message,
        status=status,
        reasons=reasons,
        cancelling=cancelling,
        compensating=compensating,
        wake=wake and not facts.owned,
        stop=_stop(reasons, cancelling=cancelling) if facts.owned else "",
    )


def _stop(reasons: tuple[Reason, ...], *, cancelling: bool) -> Stop:
    if cancelling:
        return "cancel"
    return "pause" if any(reason.reason is ReasonCode.OPERATOR for reason in reasons) else ""


def _ended(facts: Facts) -> str:
    at = facts.ended_at.astimezone(UTC).strftime(" at %Y-%m-%dT%H:%M:%S.%fZ") if facts.ended_at else ""
    return f"{facts.task_id} {'was ' if facts.status is Status.CANCELLED else ''}{facts.status}{at}"


def _wanted(reasons: tuple[Reason, ...]) -> str:
    return "It waits for: " + "; ".join(f"{reason.reason} ({reason.do})" for reason in reasons)
