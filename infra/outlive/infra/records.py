"""What an actor hands to the journal: rows, in the order of the composite types in ``0001_spine.sql``.

A `Record` is one step forward of one task. A `Claim` is the right to write that task: the journal moves its numbers,
the relay moves its `published` mark, the actor gives progress numbers; nobody else touches it.
"""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple

from outlive.protocol.answers import Code
from outlive.protocol.task import Reason, Status

Key = tuple[str, str]
"""(tenant, task_id)."""


class Fact(NamedTuple):
    """One numbered event of a task and, where it is a step, its result. `seq` comes from `Claim.number`."""

    seq: int
    type: str
    event: bytes
    step_id: str | None = None
    name: str | None = None
    status: str | None = None
    digest: bytes | None = None
    attempt: int | None = None
    took: int | None = None
    inbox_pos: int | None = None
    wait_until: datetime | None = None
    codec: int = 0
    body: bytes | None = None
    arguments: bytes | None = None
    item: str | None = None


class OperationRow(NamedTuple):
    """The final image of an operation within a batch; arguments are stored with the intent, the result in the fact."""

    step_id: str
    operation_id: str
    name: str
    status: str
    attempt: int
    digest: bytes
    codec: int
    arguments: bytes
    started_at: datetime
    deadline: datetime | None = None
    ended_at: datetime | None = None
    note: str | None = None  # None: as before


class AttemptRow(NamedTuple):
    """An attempt that ended badly, or was lost with its worker."""

    step_id: str
    operation_id: str
    attempt: int
    worker: uuid.UUID
    started_at: datetime
    ended_at: datetime | None
    error_class: str | None
    reason: str | None
    wait_until: datetime | None = None


class AnswerRow(NamedTuple):
    """What becomes of the inbox row at `pos`: its answer, or (`taken`) that a step's fact has used it.

    With `who`, the audit trail says that they did `what`, and the task's status before and after.
    """

    pos: int
    code: str | None = None
    message: str | None = None
    taken: bool = False
    who: str | None = None
    what: str | None = None
    before: str | None = None
    after: str | None = None


class Said(NamedTuple):
    """The answer to a command, to be sent once it is durable."""

    command_id: str
    code: Code
    message: str
    at: datetime


class ChildRow(NamedTuple):
    """A child task to make in the same transaction."""

    task_id: str
    step_id: str
    kind: str
    digest: bytes
    codec: int
    input: bytes
    priority: int = 0
    labels: str = "{}"


Leave = Literal["drained", "always"]
"""How a record gives the task up: only while no unseen inbox row exists, or in any case (the end, a drain)."""


@dataclass(slots=True)
class State:
    """The rare changes of a task's row; None leaves a column as it is (times, reasons and words: see `clear`)."""

    status: str | None = None
    reasons: bytes | None = None  # b"[]" = none left
    cancelling: bool | None = None
    waiting_for: str | None = None  # "" = no longer waiting
    wait_until: datetime | None = None
    note_done: int | None = None
    note_total: int | None = None
    plan_total: int | None = None
    code_version: str | None = None
    leave: Leave | None = None
    due_at: datetime | None = None  # only with leave
    tell: bool = False
    run: int | None = None
    run_from: int | None = None
    input: bytes | None = None
    plan_version: int | None = None
    model_version: str | None = None
    prompt_version: str | None = None
    compensating: bool | None = None


@dataclass(slots=True)
class Record:
    """One step forward of one task: becomes durable as a whole, or not at all."""

    facts: Sequence[Fact] = ()
    operations: Sequence[OperationRow] = ()
    attempts: Sequence[AttemptRow] = ()
    answers: Sequence[AnswerRow] = ()
    children: Sequence[ChildRow] = ()
    state: State | None = None
    applied: int | None = None  # inbox rows up to here are seen; None = as before
    steps: int = 0  # steps that this record completes
    point: str = ""  # name of its failpoints: question, intent, unknown, outcome, wait, child, leave, final
    current_step: str | None = None
    said: Sequence[Said] = ()
    attention: tuple[Status, str, list[Reason], datetime] | None = None
    # Stamped when handed in: what the row holds after this record.
    last_seq: int = 0
    total_steps: int = 0


Refusal = Literal["fenced", "mail", "unstorable"]
"""Why the journal did not take a record: another owner; unseen inbox rows at a `drained` leave; its content."""


@dataclass(slots=True)
class Claim:
    """The right to write one task, from a claim or take-over until it is left or fenced."""

    tenant: str
    task_id: str
    kind: str
    epoch: int
    version: int  # after the last record handed in
    last_seq: int  # last number given
    published: int  # moved by the relay only
    published_at: int  # moved by the relay only
    inbox_head: int
    applied: int
    steps: int
    refused: Refusal | None = field(default=None)  # set by the journal only
    left: bool = field(default=False)  # a leave is durable

    @property
    def key(self) -> Key:
        """(tenant, task_id)."""
        return (self.tenant, self.task_id)

    def number(self) -> int:
        """Give the next progress number."""
        self.last_seq += 1
        return self.last_seq
