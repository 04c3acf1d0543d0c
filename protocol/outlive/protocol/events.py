"""Progress events: facts for people, numbered per task from 1 without a gap.

A number is given in the transaction that makes the fact and never changes. Messages are sentences that a person can
read alone; fields are for machines. Readers resume from a number and tolerate types they do not know.
"""

from datetime import datetime
from typing import Final, Literal, TypeAlias

import msgspec

from outlive.protocol.answers import Code
from outlive.protocol.effects import Effects
from outlive.protocol.plan import Item
from outlive.protocol.task import Reason, Status

SEQ_HEADER: Final = "Outlive-Seq"
"""NATS header with the event's number: the same as ``seq`` in the body."""

StepStatus: TypeAlias = Literal["started", "completed", "waiting", "failed", "unknown", "skipped"]


ApprovalStatus: TypeAlias = Literal["asked", "given", "refused", "expired", "used", "waived"]


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every event carries: number, task, tenant, time (database's clock) and a sentence."""

    seq: int
    task_id: str
    tenant: str
    at: datetime
    message: str


class StatusEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="status"):
    """The task's status changed. ``final`` is true on the last event of a task (unless a person reopens it).

    ``effects`` comes with the last event of a cancel: what became of each effect.
    """

    status: Status
    reasons: list[Reason] = []
    final: bool = False
    effects: Effects | None = None


class StepEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """A step moved.

    Attributes:
        wait_until: set while it waits for a time.
        took: microseconds.
        item: of the plan, where the step belongs to one.
    """

    step_id: str
    name: str
    status: StepStatus
    attempt: int = 1
    wait_until: datetime | None = None
    took: int | None = None
    item: str | None = None


class NoteEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="note"):
    """The task says how far it is, or (with ``item``) at which item of its plan."""

    step_id: str
    done: int | None = None
    total: int | None = None
    item: str | None = None


class PlanEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="plan"):
    """The task has a plan, or another version of it: all of its items, why, and who made it (null: its own code)."""

    version: int
    items: list[Item]
    note: str = ""
    by: str | None = None


class ApprovalEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="approval"):
    """An operation needs, has, or has lost a person's yes."""

    operation_id: str
    status: ApprovalStatus
    by: str | None = None


class CommandEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="command"):
    """A command was decided. ``by`` is who claims to have given it."""

    command_id: str
    verb: str
    code: Code
    by: str | None = None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """An operation whose outcome was lost, and what the world answered."""

    operation_id: str
    step_id: str
    answer: str


class ResumedEvent(Event, frozen=True, kw_only=True, omit_defaults=True, tag="resumed"):
    """Another incarnation went on from the checkpoint.

    Attributes:
        worker: the incarnation (a process start, not a name).
        epoch: the fencing token it writes with.
        steps_kept: steps whose stored result is used, not run again.
        operations: operations whose outcome was lost, with what was found out.
        steps_repeated: steps that were begun and not recorded, and run again.
        next_step: where it goes on, if known.
    """

    worker: str
    epoch: int
    steps_kept: int
    operations: list[Asked] = []
    steps_repeated: list[str] = []
    next_step: str | None = None


AnyEvent: TypeAlias = StatusEvent | StepEvent | NoteEvent | PlanEvent | ApprovalEvent | CommandEvent | ResumedEvent


class Attention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task wants a person, or has ended: enough for a notification. Not numbered, not stored."""

    task_id: str
    tenant: str
    kind: str
    status: Status
    message: str
    at: datetime
    reasons: list[Reason] = []


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """Words of a model as it writes them: for eyes alone. Not numbered, not stored, lost without a trace.

    Attributes:
        step_id: the decision that is being made.
        attempt: of the request; a greater one begins anew.
        n: 1, 2, 3, ... within the attempt: a gap says that words were lost.
        text: what came.
    """

    task_id: str
    tenant: str
    step_id: str
    attempt: int
    n: int
    text: str
