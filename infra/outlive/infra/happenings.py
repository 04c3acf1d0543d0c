"""Facts from events: one place where a progress event gets its number, its time and its bytes.

Used by whoever may number a task's events: its actor, and the clerk for tasks without one.
"""

from collections.abc import Sequence
from datetime import datetime

from outlive.infra.records import Claim, Fact
from outlive.protocol import codec
from outlive.protocol.answers import Code
from outlive.protocol.effects import Effects
from outlive.protocol.events import (
    ApprovalEvent,
    ApprovalStatus,
    Asked,
    CommandEvent,
    NoteEvent,
    PlanEvent,
    ResumedEvent,
    StatusEvent,
    StepEvent,
    StepStatus,
)
from outlive.protocol.plan import Plan
from outlive.protocol.task import Reason, Status


def status(
    claim: Claim,
    at: datetime,
    new: Status,
    message: str,
    *,
    reasons: Sequence[Reason] = (),
    final: bool = False,
    effects: Effects | None = None,
    body: bytes | None = None,
) -> Fact:
    """The task's status changed; `body` is the task's result or failure, `effects` what a cancelled one has done."""
    seq = claim.number()
    event = StatusEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message, status=new,
        reasons=list(reasons), final=final, effects=effects,
    )  # fmt: skip
    return Fact(seq, "status", codec.encode(event), status=str(new), body=body)


def step(
    claim: Claim,
    at: datetime,
    step_id: str,
    name: str,
    new: StepStatus,
    message: str,
    *,
    digest: bytes | None = None,
    attempt: int = 1,
    took: int | None = None,
    wait_until: datetime | None = None,
    inbox_pos: int | None = None,
    body: bytes | None = None,
    arguments: bytes | None = None,
    item: str | None = None,
) -> Fact:
    """A step moved; `body` is its result (completed) or failure (failed), `took` in microseconds."""
    seq = claim.number()
    event = StepEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message, step_id=step_id, name=name,
        status=new, attempt=attempt, wait_until=wait_until, took=took, item=item,
    )  # fmt: skip
    return Fact(
        seq,
        "step",
        codec.encode(event),
        step_id,
        name,
        new,
        digest,
        attempt,
        took,
        inbox_pos,
        wait_until,
        0,
        body,
        arguments,
        item,
    )


def note(
    claim: Claim,
    at: datetime,
    step_id: str,
    message: str,
    *,
    done: int | None = None,
    total: int | None = None,
    item: str | None = None,
    name: str = "note",
    digest: bytes | None = None,
    body: bytes | None = None,
    arguments: bytes | None = None,
) -> Fact:
    """The task says how far it is; under another `name` it also keeps something (`body`) at its place."""
    seq = claim.number()
    event = NoteEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message, step_id=step_id, done=done,
        total=total, item=item,
    )  # fmt: skip
    return Fact(
        seq, "note", codec.encode(event), step_id, name, "completed", digest, body=body, arguments=arguments, item=item
    )


def plan(
    claim: Claim,
    at: datetime,
    new: Plan,
    *,
    step_id: str | None = None,
    digest: bytes | None = None,
    inbox_pos: int | None = None,
) -> Fact:
    """The task has a plan, or another one; `step_id` is its place, unless a person has made it."""
    seq = claim.number()
    texts = "; ".join(item.text for item in new.items)
    message = f"Plan, version {new.version}{f' by {new.by}' if new.by else ''}: {texts}"
    event = PlanEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message[:2000], version=new.version,
        items=new.items, note=new.note, by=new.by,
    )  # fmt: skip
    return Fact(
        seq, "plan", codec.encode(event), step_id, "plan", "completed", digest, inbox_pos=inbox_pos,
        body=codec.encode(new),
    )  # fmt: skip


def approval(
    claim: Claim,
    at: datetime,
    step_id: str,
    operation_id: str,
    new: ApprovalStatus,
    message: str,
    *,
    by: str | None = None,
) -> Fact:
    """An operation needs, has, or has lost a person's yes."""
    seq = claim.number()
    event = ApprovalEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message,
        operation_id=f"{step_id}:{operation_id}", status=new, by=by,
    )  # fmt: skip
    return Fact(seq, "approval", codec.encode(event), step_id, status=new)


def command(
    claim: Claim, at: datetime, command_id: str, verb: str, code: Code, message: str, *, by: str | None = None
) -> Fact:
    """A command was decided."""
    seq = claim.number()
    event = CommandEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message, command_id=command_id, verb=verb,
        code=code, by=by,
    )  # fmt: skip
    return Fact(seq, "command", codec.encode(event), name=verb, status=str(code))


def resumed(
    claim: Claim,
    at: datetime,
    worker: str,
    message: str,
    *,
    kept: int,
    asked: Sequence[Asked] = (),
    repeated: Sequence[str] = (),
    next_step: str | None = None,
) -> Fact:
    """Another incarnation went on from the checkpoint."""
    seq = claim.number()
    event = ResumedEvent(
        seq=seq, task_id=claim.task_id, tenant=claim.tenant, at=at, message=message, worker=worker, epoch=claim.epoch,
        steps_kept=kept, operations=list(asked), steps_repeated=list(repeated), next_step=next_step,
    )  # fmt: skip
    return Fact(seq, "resumed", codec.encode(event))
