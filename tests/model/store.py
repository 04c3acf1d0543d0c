"""Store, streams and outside world of the model: small, exact, and as hostile as the real ones may be.

What the product decides in Python is the product's own code here (`intake.read`, `Admission`, `lifecycle.apply`); what it
decides in SQL is restated in a few lines, next to the name of the statement.
"""

import json
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from outlive.infra import intake
from outlive.infra.admission import Admission, Known, Mailbox, Seen
from outlive.infra.pull import Message
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import Reason, Status

SUBJECTS: Final = Subjects("outlive")
TENANT: Final = "default"
KIND: Final = "pay"
NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
OVER: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})


@dataclass
class Letter:
    """A row of the inbox."""

    command_id: str
    task_id: str
    verb: str
    body: bytes
    digest: bytes
    pos: int | None
    code: str | None
    message: str | None


@dataclass
class Operation:
    """A row of the ledger."""

    status: str
    epoch: int


@dataclass
class Task:
    """A row of `task`, with its facts."""

    task_id: str
    digest: bytes
    status: Status = Status.QUEUED
    owner: uuid.UUID | None = None
    epoch: int = 0
    version: int = 0
    steps: int = 0
    inbox_head: int = 0
    applied: int = 0
    published: int = 0
    published_at: int = 0
    due: bool = True
    mail: bool = False
    sweep: bool = False
    cancelling: bool = False
    reasons: tuple[Reason, ...] = ()
    facts: list[str] = field(default_factory=list)
    operations: dict[str, Operation] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    """By the number of steps that were done."""


@dataclass
class Cursor:
    """The row `cursor`."""

    owner: uuid.UUID | None = None
    epoch: int = 0
    seq: int = 0
    created: str = ""
    at: str = ""
    digest: bytes = b""


@dataclass
class CommandStream:
    """The stream of commands: it may be made anew, or lose its end."""

    created: str = "stream 1"
    messages: list[Message] = field(default_factory=list)
    stored: int = 0
    """Messages ever stored, in any of its lives: the time of each is another."""

    def publish(self, task: str, verb: str, **fields: Any) -> None:
        """Store a command."""
        body = json.dumps({"type": verb, **fields}).encode()
        self.stored += 1
        subject = SUBJECTS.command(TENANT, task, verb)
        self.messages.append(Message(len(self.messages) + 1, str(self.stored), subject, {}, body))


@dataclass
class ProgressStream:
    """The events of each task, as the stream holds them: (number, stream sequence)."""

    last: int = 0
    events: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def end(self, task: str) -> tuple[int, int]:
        """Number and sequence of the last event of a task; zeros without one."""
        return (self.events.get(task) or [(0, 0)])[-1]

    def publish(self, task: str, number: int, expected: int | None) -> int | None:
        """Append, if the subject's last sequence is the one expected; None is a refusal."""
        if expected is not None and self.end(task)[1] != expected:
            return None
        self.last += 1
        self.events.setdefault(task, []).append((number, self.last))
        return self.last

    def lose(self, count: int) -> None:
        """Lose the last messages of the stream, as a power cut between two syncs does.

        Their sequences are not given again here. In NATS they are: a worker that stood still since before the loss may
        then take another message for the one that it expects, and publish an event again, which readers drop by its number.
        """
        for task, events in self.events.items():
            self.events[task] = [event for event in events if event[1] <= self.last - count]


@dataclass
class World:
    """A remote without keys that can be asked: requests travel, happen or get lost."""

    happened: Counter[str] = field(default_factory=Counter)
    travelling: list[tuple[str, bool]] = field(default_factory=list)
    """Key of each request under way, and whether whoever sent it still listens."""


class Store:
    """Postgres, as far as the protocol goes."""

    def __init__(self, bugs: frozenset[str] = frozenset()) -> None:
        """Empty; `bugs` name what is left out of its rules."""
        self.bugs = bugs
        self.cursor = Cursor()
        self.inbox: list[Letter] = []
        self.tasks: dict[str, Task] = {}
        self.fenced: set[uuid.UUID] = set()

    # --- ingest.sql

    def take_cursor(self, me: uuid.UUID, *, free: bool) -> int | None:
        """`take`: the new epoch; `free` says that its holder is dead or its lease over."""
        if self.cursor.owner in (None, me) or free:
            self.cursor.owner, self.cursor.epoch = me, self.cursor.epoch + 1
            return self.cursor.epoch
        return None

    def restart_cursor(self, me: uuid.UUID, epoch: int, created: str) -> bool:
        """`restart`."""
        if (self.cursor.owner, self.cursor.epoch) != (me, epoch):
            return False
        self.cursor = replace(self.cursor, seq=0, at="", digest=b"", created=created)
        return True

    def admit(self, me: uuid.UUID, epoch: int, before: int, batch: list[Message], created: str) -> bool:
        """`look` and `admit`, one transaction: False is `Deposed`."""
        if "no fence of the cursor" not in self.bugs and (
            (self.cursor.owner, self.cursor.epoch, self.cursor.seq) != (me, epoch, before)
        ):
            return False
        rows = [] if "no inbox key" in self.bugs else self.inbox
        admission = Admission(
            Seen(
                NOW,
                {
                    (TENANT, row.command_id): Known(row.task_id, row.digest, row.code, row.message, NOW if row.code else None)
                    for row in rows
                },
                {(TENANT, t.task_id): Mailbox(TENANT, t.task_id, KIND, t.digest, t.status, t.owner, t.inbox_head) for t in self.tasks.values()},
                [KIND],
            )
        )  # fmt: skip
        for message in batch:
            admission.admit(intake.read(message, SUBJECTS, created, 1 << 20))
        self._write(admission)
        last = batch[-1]
        self.cursor = replace(self.cursor, seq=last.seq, at=last.at, digest=last.digest)
        return True

    def _write(self, admission: Admission) -> None:
        columns = admission.columns()
        new, commands, mailed = (list(zip(*columns[a:b], strict=True)) for a, b in ((0, 9), (9, 21), (21, 26)))
        for _, task_id, _, digest, _, _, _, head, mail in new:
            self.tasks[task_id] = Task(task_id, digest, inbox_head=head, mail=mail)
        for _, command_id, task_id, pos, verb, _, _, _, digest, body, code, message in commands:
            self.inbox.append(Letter(command_id, task_id, verb, body, digest, pos, code, message))
        for _, task_id, head, due, mail in mailed:
            task = self.tasks[task_id]
            task.inbox_head, task.due, task.mail = head, task.due or due, task.mail or mail

    # --- claims.sql, liveness.sql

    def claim(self, me: uuid.UUID, task: Task, former: uuid.UUID | None = None) -> bool:
        """`claim` (of one that is due) and `take_over` (of one whose owner, `former`, was fenced)."""
        if me in self.fenced or task.owner != former or (former is None and not task.due):
            return False
        if former is not None:
            task.deaths[task.steps] += 1
        task.owner, task.epoch = me, task.epoch + 1
        task.due = task.mail = task.sweep = False
        return True

    # --- journal.sql

    def write(self, me: uuid.UUID | None, epoch: int, after: int, task: Task, *, drained_at: int | None = None) -> bool:
        """`batch`: whether a record may be written behind version `after`; `drained_at` is what a leave has seen of the inbox."""
        owns = "no fence" in self.bugs or (task.owner, task.epoch) == (me, epoch)
        fits = "no version check" in self.bugs or task.version == after
        if not (owns and fits) or (drained_at is not None and task.inbox_head != drained_at):
            return False
        task.version += 1
        return True

    # --- relay.sql

    def mark(self, task: Task, epoch: int, published: int, at: int) -> None:
        """`mark`, of a task that was left."""
        if task.epoch == epoch and task.published <= published:
            task.published, task.published_at = published, at
            task.sweep = task.sweep and published < len(task.facts)
