"""Questions about tasks: the requests and replies of ``{prefix}.{tenant}.api.{verb}`` (NATS request and reply).

The request is one JSON object (an empty payload is ``{}``), the reply one JSON value of the verb's reply type. A no is
a `Problem`, marked by the header ``Nats-Service-Error-Code``. No reply is larger than the server's ``max_payload``:
lists come in pages (ask again with the ``after`` or ``next`` of the page before, until it is null), large single
values in slices (`Slice`). Any worker answers, for all tenants; unknown fields are ignored.
"""

import enum
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from outlive.protocol.answers import Answer
from outlive.protocol.checkpoint import Checkpoint
from outlive.protocol.operations import AttemptRecord, OperationRecord, WordRecord
from outlive.protocol.task import Status, TaskRecord

ERROR_HEADER: Final = "Nats-Service-Error-Code"
"""Header of a reply that is a `Problem`; its value is the problem's code."""

PAGE_LIMIT: Final = 500
"""The most items of one page."""

Limit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=PAGE_LIMIT)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Trouble(enum.StrEnum):
    """Why a question has no answer."""

    INVALID = "invalid"  # the request cannot be read, or an id breaks the rule
    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_COMMAND = "unknown_command"  # never arrived, or not yet
    NOT_FOUND = "not_found"  # the task has no such part
    TOO_LARGE = "too_large"  # the message says how to get it in parts
    BUSY = "busy"  # too many questions at once; ask again
    UNAVAILABLE = "unavailable"  # the database does not answer; ask again


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to a question that cannot be answered: the machine's word and a sentence that says what to do."""

    error: Trouble
    message: str


class Get(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``get`` -> `TaskRecord`.

    Attributes:
        with_input: false leaves the task's input out.
        with_result: false leaves the result out; a record that is too large for one message is refused
            (``too_large``) until input or result, or both, are left out and read by `Slice`.
    """

    task_id: str
    with_input: bool = True
    with_result: bool = True


class List(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``list`` -> `TaskPage`, newest first, without inputs and results.

    Attributes:
        status, kind, parent, labels: what a task must have, all of it; empty = any.
        limit: most tasks of the page, 1 to 500.
        after: the page before's ``after``.
    """

    status: list[Status] = []
    kind: str | None = None
    parent: str | None = None
    labels: dict[str, str] = {}
    limit: Limit = 50
    after: str | None = None


class TaskPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some tasks; ``after`` is null on the last page."""

    tasks: list[TaskRecord]
    after: str | None = None


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``waiting`` -> `TaskPage`: the tasks that wait for a person; ``needs`` holds the commands to type."""

    limit: Limit = 50
    after: str | None = None


class Why(msgspec.Struct, frozen=True, kw_only=True):
    """Verb ``why`` -> `Explanation`: why a task is where it is, and what happens next."""

    task_id: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One paragraph for people."""

    task_id: str
    text: str


class GetCheckpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``checkpoint`` -> `CheckpointPage`; ``after`` is the page before's ``next``."""

    task_id: str
    after: Number = 0


class CheckpointPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a task's checkpoint: all of it but its steps, and the steps of this page.

    Attributes:
        next: pass as ``after`` for the next page; null on the last one.
        large: numbers (``seq``) of steps whose results are too large for a page; see `Slice`.
    """

    checkpoint: Checkpoint
    next: int | None = None
    large: list[int] = []


class Operations(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``operations`` -> `OperationPage`: the ledger of a task, by step and operation."""

    task_id: str
    limit: Limit = 100
    after: tuple[str, str] | None = None


class OperationPage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the ledger. Results above 10,000 bytes are in the checkpoint alone, by step id.

    Attributes:
        attempts: those of these operations, and of read-only steps between them.
        words: what people said about these operations, in the order in which it was applied; with the first page also
            of read-only steps whose arguments they corrected.
        after: (step id, operation id) of the last one; null on the last page.
    """

    operations: list[OperationRecord]
    attempts: list[AttemptRecord]
    words: list[WordRecord] = []
    after: tuple[str, str] | None = None


class Events(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``events`` -> `EventPage`: progress events from a number on, also older ones than the stream keeps."""

    task_id: str
    from_seq: Number = 1
    max_bytes: Number | None = None


class EventPage(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive progress events, as published.

    Attributes:
        events: the first one has number ``from_seq``, or a larger one where older history was removed.
        last_seq: the last number of the task when this was read.
        final: the task had ended then, so that number is its last one (unless a person reopens it).
        next: the number to go on from; null when nothing more is known now.
        large: the number of an event that is too large for a page (it is not in ``events``; see `Slice`).
    """

    events: list[msgspec.Raw]
    last_seq: int
    final: bool = False
    next: int | None = None
    large: int | None = None


Part: TypeAlias = Literal["input", "result", "event", "command"]
"""What can be read in slices: a task's input; the result of the task or of one step; one progress event; a command."""


class Slice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``slice`` -> `Piece`: a large value, piece by piece. What is sliced never changes.

    Attributes:
        part: input | result | event | command.
        seq: the number of the step or event; without one ``result`` is the task's own.
        command_id: of the command.
        offset: bytes to skip: 0, then the sum of the lengths received.
    """

    task_id: str
    part: Part = "result"
    seq: Number | None = None
    command_id: str | None = None
    offset: Number = 0


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a value's JSON text; the whole has ``total`` bytes. ``data`` is base64."""

    total: int
    data: bytes


class FindCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Verb ``command`` -> `CommandRecord`: what became of a command."""

    command_id: str


class CommandRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A command that arrived.

    Attributes:
        digest: hex digest of what it says; another one under the same id is a conflict.
        answer: null until the task's owner or the clerk has decided.
        pos: its place among the task's commands; null = it was decided on arrival.
        body: what it says, as it came; only in a `CommandPage`.
    """

    command_id: str
    task_id: str
    verb: str
    digest: str
    by: str | None
    received_at: datetime
    answer: Answer | None = None
    pos: int | None = None
    body: Any = None


class Commands(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``commands`` -> `CommandPage`: what a task was told; those decided on arrival first, then by place."""

    task_id: str
    limit: Limit = 100
    after: tuple[int, str] | None = None


class CommandPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some commands of a task.

    Attributes:
        large: ids of those whose body is too large for a page; see `Slice`.
        after: pass it on for the next page; null on the last one.
    """

    commands: list[CommandRecord]
    large: list[str] = []
    after: tuple[int, str] | None = None


class Audit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``audit`` -> `AuditPage`: who did what to a task, and refused writes, oldest first."""

    task_id: str
    limit: Limit = 100
    after: Number = 0


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the audit trail; `before` and `after` are the task's status, of ``correct`` the arguments (cut)."""

    id: int
    at: datetime
    who: str
    what: str
    before: str | None = None
    after: str | None = None
    detail: str | None = None


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some lines; pass the last id as ``after``, null on the last page."""

    audit: list[AuditRecord]
    after: int | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``stats`` -> `StatsPage`: how the tools fared in some tasks, newest first. Add the pages up.

    Attributes:
        kind: only tasks of this kind.
        within: only tasks created within the last so many seconds.
        limit: most tasks that are counted for one page.
    """

    kind: str | None = None
    within: Annotated[float, msgspec.Meta(ge=0)] | None = None
    limit: Limit = 200
    after: str | None = None


class ToolStats(msgspec.Struct, frozen=True, kw_only=True):
    """How one tool fared.

    Attributes:
        calls: steps that call it: succeeded + failed + unknown + open.
        open: not ended yet: under way, or waiting for its next attempt or for a person.
        attempts: how often it was run for them, as far as recorded (a crash forgets a read-only attempt).
        errors: attempts that ended badly, by error class: many ``unavailable`` speak of an unstable service, many
            ``invalid_arguments`` of whoever makes the arguments.
        waited, longest_wait: seconds of pauses before next attempts, as planned.
    """

    name: str
    calls: int
    succeeded: int
    failed: int
    unknown: int
    open: int
    attempts: int
    errors: dict[str, int]
    waited: float
    longest_wait: float


class StatsPage(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of `tasks` tasks, by name; ``after`` is null on the last page."""

    tools: list[ToolStats]
    tasks: int
    after: str | None = None


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """Verb ``kinds`` -> `KindPage`: what can be submitted."""


class KindRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A kind that a worker has registered.

    Attributes:
        input_schema: JSON Schema of the input.
        workers: living workers that have it; 0 means that its tasks wait.
    """

    name: str
    code_version: str
    title: str | None
    registered_at: datetime
    workers: int
    input_schema: msgspec.Raw


class KindPage(msgspec.Struct, frozen=True, kw_only=True):
    """All kinds, by name."""

    kinds: list[KindRecord]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Verb ``health`` -> `HealthReport`: how the whole installation is."""


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A living worker: one process start, and what it says of itself."""

    incarnation: str
    host: str
    pid: int
    version: str
    kinds: list[str]
    slots: int
    busy: int
    draining: bool
    started_at: datetime
    until: datetime
    health: msgspec.Raw


class HealthReport(msgspec.Struct, frozen=True, kw_only=True):
    """Workers and lags. Seconds are counted on the database's clock; null = nothing waits.

    Attributes:
        due_for: how long the longest-waiting task has been due.
        mail_for: how long the oldest command has waited for the clerk.
        unpublished_for: how long the oldest left task has kept events that may not be in the stream.
        commands_behind: messages of the command stream that are not taken in; null = the stream does not answer.
        ingester: the incarnation that reads the command stream; null = nobody holds it.
    """

    at: datetime
    workers: list[WorkerRecord]
    due_for: float | None
    mail_for: float | None
    unpublished_for: float | None
    commands_behind: int | None
    ingester: str | None


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Verb ``dead_letters`` -> `DeadLetterPage`: messages that could not be read, oldest first."""

    limit: Limit = 50
    after: Number = 0


class DeadLetterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A message that could not be read; ``size`` is that of its body in bytes."""

    id: int
    at: datetime
    subject: str
    stream_seq: int
    reason: str
    size: int


class DeadLetterPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some dead letters; pass the last id as ``after``, null on the last page."""

    dead_letters: list[DeadLetterRecord]
    after: int | None = None


class Verb(NamedTuple):
    """A question: its request and reply types."""

    request: type[Any]
    reply: type[Any]


VERBS: Final[Mapping[str, Verb]] = MappingProxyType(
    {
        "get": Verb(Get, TaskRecord),
        "list": Verb(List, TaskPage),
        "waiting": Verb(Waiting, TaskPage),
        "why": Verb(Why, Explanation),
        "checkpoint": Verb(GetCheckpoint, CheckpointPage),
        "operations": Verb(Operations, OperationPage),
        "events": Verb(Events, EventPage),
        "slice": Verb(Slice, Piece),
        "command": Verb(FindCommand, CommandRecord),
        "commands": Verb(Commands, CommandPage),
        "audit": Verb(Audit, AuditPage),
        "stats": Verb(Stats, StatsPage),
        "kinds": Verb(Kinds, KindPage),
        "health": Verb(Health, HealthReport),
        "dead_letters": Verb(DeadLetters, DeadLetterPage),
    }
)
"""Every question with its types: what the service answers and the schemas are made from."""
