"""What becomes of commands, given what the store knows: decided in the order of the stream, without I/O.

A command id belongs to the first command that used it, a task id to the first submit. Everything that is decided here
has its answer stored with it; what a task's owner or the clerk must decide gets a place in the task's mailbox.
"""

import difflib
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from outlive.infra.intake import Incoming, Submission
from outlive.infra.records import Key
from outlive.protocol import codec
from outlive.protocol.answers import Answer, Code
from outlive.protocol.task import Status

DEAD_BODY_LIMIT: Final = 1 << 20
"""Bytes of a dead letter that are kept."""

_YES: Final = frozenset({Code.APPLIED, Code.DUPLICATE})


class Known(NamedTuple):
    """A command id that is taken."""

    task_id: str
    digest: bytes
    code: str | None
    """None: not decided yet."""
    message: str | None
    decided_at: datetime | None


@dataclass(slots=True)
class Mailbox:
    """A task, as far as its mail is concerned; its row is locked, or it is made by this batch."""

    tenant: str
    task_id: str
    kind: str
    digest: bytes
    status: str
    owner: uuid.UUID | None
    head: int
    submission: Submission | None = None
    """Set: this batch makes the task."""
    mailed: bool = False
    due: bool = False
    mail: bool = False

    def deliver(self, incoming: Incoming) -> int:
        """Give the next position, and note who must be told: the owner, a worker with the code, or the clerk."""
        self.head += 1
        self.mailed = True
        if self.owner is None:
            wakes = incoming.verb == "signal" and self.status == Status.RUNNING
            self.due, self.mail = self.due or wakes, self.mail or not wakes
        return self.head


class Seen(NamedTuple):
    """What the store knew about a batch, with the rows of its tasks locked."""

    now: datetime
    commands: Mapping[Key, Known]
    """By (tenant, command_id)."""
    tasks: Mapping[Key, Mailbox]
    """By (tenant, task_id)."""
    kinds: Collection[str]


@dataclass(frozen=True, slots=True)
class Wake:
    """Who has something to do after a batch."""

    owners: Mapping[uuid.UUID, Sequence[Key]] = field(default_factory=dict[uuid.UUID, Sequence[Key]])
    """Their tasks have mail."""
    due: bool = False
    """Tasks without an owner are due."""
    mail: bool = False
    """Tasks without an owner have mail for the clerk."""

    def __bool__(self) -> bool:
        """Whether there is anybody to wake."""
        return bool(self.owners or self.due or self.mail)


class Admission:
    """Decides the commands of one batch and collects the rows to write.

    Attributes:
        now: time of every decision.
        answers: to be sent after the commit, with their tenants.
    """

    def __init__(self, seen: Seen) -> None:
        """Begin with what is in the store."""
        self.now = seen.now
        self.answers: list[tuple[str, Answer]] = []
        self._known = dict(seen.commands)
        self._tasks = dict(seen.tasks)
        self._kinds = seen.kinds
        self._commands: list[Sequence[Any]] = []
        self._dead: list[Sequence[Any]] = []
        self._audit: list[Sequence[Any]] = []

    def admit(self, incoming: Incoming) -> None:
        """Decide one command."""
        if incoming.dead is not None:
            self._dead.append(_dead_letter(incoming, incoming.dead))
        if incoming.command_id is None:
            return
        known = self._known.get((incoming.tenant, incoming.command_id))
        if known is not None:
            self._repeat(incoming, incoming.command_id, known)
        elif incoming.refusal is not None:
            self._answer(incoming, *incoming.refusal)
        elif incoming.submission is not None:
            self._submit(incoming, incoming.submission)
        else:
            self._deliver(incoming)

    def _repeat(self, incoming: Incoming, command_id: str, known: Known) -> None:
        """Answer an id that is taken: the first answer again, or a conflict that changes nothing."""
        if incoming.digest == known.digest:
            if known.code is not None and known.decided_at is not None:
                self._say(incoming, Code(known.code), known.message or "", known.decided_at)
            return
        message = (
            f"the command id {command_id} was used before, for task {known.task_id} and with another content: "
            "nothing was done. Send it under a new id"
        )
        self._say(incoming, Code.CONFLICT, message, self.now)
        self._object(incoming, message)

    def _submit(self, incoming: Incoming, submission: Submission) -> None:
        task = self._tasks.get((incoming.tenant, incoming.task_id))
        if task is not None:
            self._resubmit(incoming, submission, task)
        elif submission.kind not in self._kinds:
            self._answer(incoming, Code.UNKNOWN_KIND, _unknown_kind(submission.kind, self._kinds))
        else:
            self._tasks[incoming.tenant, incoming.task_id] = Mailbox(
                incoming.tenant,
                incoming.task_id,
                submission.kind,
                submission.digest,
                Status.QUEUED,
                None,
                0,
                submission,
            )
            self._answer(incoming, Code.APPLIED, f"task {incoming.task_id} is queued")

    def _resubmit(self, incoming: Incoming, submission: Submission, task: Mailbox) -> None:
        if submission.digest == task.digest:
            message = (
                f"task {task.task_id} exists with this kind and input (it is {task.status}): no second one was made"
            )
            self._answer(incoming, Code.DUPLICATE, message)
            return
        message = (
            f"task {task.task_id} exists (kind {task.kind}, {task.status}) with another kind or input: "
            "choose another task id"
        )
        self._answer(incoming, Code.CONFLICT, message)
        self._object(incoming, message)

    def _deliver(self, incoming: Incoming) -> None:
        task = self._tasks.get((incoming.tenant, incoming.task_id))
        if task is None:
            message = f"there is no task {incoming.task_id}: submit it first, or look for its id with: outlive list"
            self._answer(incoming, Code.UNKNOWN_TASK, message)
        else:
            self._store(incoming, task.deliver(incoming), None, None)

    def _answer(self, incoming: Incoming, code: Code, message: str) -> None:
        """Decide a command for good."""
        self._store(incoming, None, code, message)
        self._say(incoming, code, message, self.now)

    def _store(self, incoming: Incoming, pos: int | None, code: Code | None, message: str | None) -> None:
        assert incoming.command_id is not None
        known = Known(incoming.task_id, incoming.digest, code, message, self.now if code else None)
        self._known[incoming.tenant, incoming.command_id] = known
        row = (
            incoming.tenant, incoming.command_id, incoming.task_id, pos, incoming.verb, incoming.name, incoming.by,
            incoming.claimed, incoming.digest, incoming.message.body, code, message,
        )  # fmt: skip
        self._commands.append(row)

    def _say(self, incoming: Incoming, code: Code, message: str, at: datetime) -> None:
        answer = Answer(
            command_id=incoming.command_id or "", task_id=incoming.task_id, ok=code in _YES, code=code, message=message,
            at=at,
        )  # fmt: skip
        self.answers.append((incoming.tenant, answer))

    def _object(self, incoming: Incoming, detail: str) -> None:
        """Note a refused write for the audit trail."""
        self._audit.append((incoming.tenant, incoming.task_id, incoming.by or "unknown", incoming.verb, detail))

    def wake(self) -> Wake:
        """Say who must be told after the commit."""
        owners: dict[uuid.UUID, list[Key]] = {}
        for key, task in self._tasks.items():
            if task.mailed and task.owner is not None:
                owners.setdefault(task.owner, []).append(key)
        tasks = self._tasks.values()
        return Wake(owners, any(task.due or task.submission for task in tasks), any(task.mail for task in tasks))

    def columns(self) -> list[Sequence[Any]]:
        """Return the parameters $10 to $46 of the statement ``admit``: the rows to write, as columns."""
        new = [
            (t.tenant, t.task_id, t.kind, t.digest, s.input, s.labels, s.priority, t.head, t.mail)
            for t in self._tasks.values()
            if (s := t.submission)
        ]
        mailed = [
            (t.tenant, t.task_id, t.head, t.due, t.mail) for t in self._tasks.values() if t.mailed and not t.submission
        ]
        tables = ((new, 9), (self._commands, 12), (mailed, 5), (self._dead, 6), (self._audit, 5))
        return [column for rows, width in tables for column in _turned(rows, width)]

    @property
    def made(self) -> int:
        """How many tasks this batch makes."""
        return sum(task.submission is not None for task in self._tasks.values())


def _turned(rows: Sequence[Sequence[Any]], width: int) -> Iterable[Sequence[Any]]:
    return zip(*rows, strict=True) if rows else [()] * width


def _dead_letter(incoming: Incoming, reason: str) -> Sequence[Any]:
    message = incoming.message
    headers = {_storable(name): _storable(value) for name, value in message.headers.items()}
    body = message.body[:DEAD_BODY_LIMIT]
    return (
        incoming.tenant, _storable(message.subject), message.seq, _storable(reason), codec.encode(headers).decode(),
        body,
    )  # fmt: skip


def _storable(text: str) -> str:
    """Make a text one that Postgres takes: no NUL, no lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def _unknown_kind(kind: str, kinds: Collection[str]) -> str:
    close = difflib.get_close_matches(kind, kinds, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else "Start a worker that has it, then submit again."
    return f"No worker has ever registered the kind {kind!r}. {hint}"
