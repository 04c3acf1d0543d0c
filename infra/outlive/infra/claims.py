"""Claiming tasks, taking over those of dead workers, and loading what they need to go on.

A task is loaded with a handful of range scans, many tasks at once; a new task needs none.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from outlive.infra import failpoints, sql
from outlive.infra.database import patiently
from outlive.infra.records import Claim, Key
from outlive.protocol.effects import Entry
from outlive.protocol.task import Status

PROBATION: Final = 2
"""Deaths since its last completed step from which on a task runs alone among its like, and is judged only by that."""


class StoredFact(NamedTuple):
    """A step, note or plan of the current run, as the replay needs it; a plan of a person has no place (``step_id``)."""

    seq: int
    type: str
    step_id: str
    name: str
    status: str
    digest: bytes | None
    attempt: int
    wait_until: datetime | None
    body: bytes | None
    arguments: bytes | None
    item: str | None = None
    inbox_pos: int | None = None


class StoredOperation(NamedTuple):
    """An operation of the ledger."""

    step_id: str
    operation_id: str
    name: str
    status: str
    digest: bytes
    attempt: int
    epoch: int
    started_at: datetime
    worker: uuid.UUID
    arguments: bytes
    note: str | None = None
    deadline: datetime | None = (
        None  # last moment at which the open attempt may still reach the remote, as far as was known
    )


class StoredAttempt(NamedTuple):
    """An attempt that ended badly."""

    step_id: str
    operation_id: str
    attempt: int
    error_class: str | None
    reason: str | None
    wait_until: datetime | None


class Attempt(NamedTuple):
    """Which attempt of which operation."""

    tenant: str
    task_id: str
    step_id: str
    operation_id: str
    attempt: int


class LedgerEntry(NamedTuple):
    """An operation without its arguments."""

    step_id: str
    operation_id: str
    name: str
    status: str
    attempt: int
    digest: bytes
    epoch: int
    worker: uuid.UUID
    started_at: datetime
    deadline: datetime | None
    ended_at: datetime | None
    note: str | None

    @property
    def entry(self) -> Entry:
        """What a summary of the ledger needs."""
        return Entry(self.step_id, self.operation_id, self.name, self.status, self.note or "")


class Mail(NamedTuple):
    """An inbox row: a command, a child's end. `taken`: a step has used it; then it only tells who said it, and when."""

    pos: int
    verb: str
    name: str | None
    command_id: str
    by: str | None
    at: datetime
    body: bytes
    taken: bool = False


@dataclass(slots=True)
class Claimed:
    """A task that is ours now, with its stored history of the current run."""

    claim: Claim
    status: str
    cancelling: bool
    input: bytes
    run: int
    run_from: int
    waiting_for: str | None
    reasons: bytes | None
    current_step: str | None
    code_version: str | None
    parent: str | None
    deaths: int  # since the last completed step, this one included
    died: uuid.UUID | None  # whom it was taken over from
    facts: list[StoredFact] = field(default_factory=list)
    operations: list[StoredOperation] = field(default_factory=list)
    attempts: list[StoredAttempt] = field(default_factory=list)
    mail: list[Mail] = field(default_factory=list)
    backlog: list[tuple[int, bytes]] = field(default_factory=list)  # events above `published`
    plan_version: int = 0  # known to the clerk alone: an owner reads its facts
    plans: bool = False  # known to the clerk alone: people may change its plan
    compensating: bool = False

    @property
    def new(self) -> bool:
        """True when nothing of it was ever recorded."""
        return self.claim.last_seq == 0 and self.claim.inbox_head == 0


class Claims:
    """The claims of one worker."""

    def __init__(self, pool: Any, incarnation: uuid.UUID, kinds: Sequence[str]) -> None:
        """Claim tasks of these kinds for this incarnation."""
        self._pool = pool
        self._incarnation = incarnation
        self._kinds = list(kinds)
        self._sql = sql.load("claims")

    async def due(self, most: int) -> list[Claimed]:
        """Claim up to `most` tasks that are due, not more than this worker's share, without their history."""
        if failpoints.armed:
            await failpoints.hit("claim.before")
        rows = await self._pool.fetch(self._sql["claim"], self._incarnation, most, self._kinds)
        if failpoints.armed and rows:
            await failpoints.hit("claim.after")
        return [claimed_row(row) for row in rows]

    async def take_over(self, dead: Mapping[uuid.UUID, str], most: int) -> list[Claimed]:
        """Take up to `most` tasks of dead workers; each goes to one winner."""
        rows = await self._pool.fetch(
            self._sql["take_over"], self._incarnation, most, list(dead), self._kinds, list(dead.values()), PROBATION
        )
        return [claimed_row(row) for row in rows]

    async def alone(self, claim: Claim) -> None:
        """Note that a task on probation runs alone from now on: the death of its worker counts."""
        await self._pool.execute(self._sql["alone"], self._incarnation, *claim.key, claim.epoch)

    async def release(self, dead: Sequence[uuid.UUID]) -> None:
        """Set free what dead workers own and no living worker could run."""
        await self._pool.execute(self._sql["release"], list(dead))

    async def owned(self) -> dict[Key, tuple[int, int]]:
        """What the table says is ours: epoch and inbox head by key."""
        rows = await self._pool.fetch(self._sql["owned"], self._incarnation)
        return {(row["tenant"], row["task_id"]): (row["epoch"], row["inbox_head"]) for row in rows}

    async def reclaim(self, keys: Sequence[Key]) -> list[Claimed]:
        """Take up tasks that are ours by the table and have no actor (a claim whose answer was lost, a dead actor)."""
        rows = await self._pool.fetch(
            self._sql["reclaim"], self._incarnation, [k[0] for k in keys], [k[1] for k in keys]
        )
        return [claimed_row(row) for row in rows]

    async def parent(self, tenant: str, task_id: str) -> tuple[str | None, str | None]:
        """Return whose child a task is, and of which step; waits for Postgres through outages."""
        row = await self._read("parent", tenant, task_id)
        return (row["parent"], row["parent_step"]) if row is not None else (None, None)

    async def first_attempt(self, tenant: str, task_id: str, step_id: str, operation_id: str) -> datetime | None:
        """Return when an operation was first begun; waits for Postgres through outages."""
        at: datetime | None = (await self._read("first_attempt", tenant, task_id, step_id, operation_id))[0]
        return at

    async def turned_out(self, attempt: Attempt) -> tuple[str, Status, str] | None:
        """Note that an attempt has happened after all, if it was judged otherwise. Needs no claim: never fenced.

        Returns:
            kind and status of its task, and what was noted; None when nobody had judged otherwise, or it is noted already.
        """
        row = await self._read("turned_out", *attempt, self._incarnation)
        return (row["kind"], Status(row["status"]), row["message"]) if row is not None else None

    async def doubt(self, attempt: Attempt, message: str) -> None:
        """Mark an operation with what was found out about it."""
        await self._read("doubt", *attempt, self._incarnation, message)

    async def _read(self, name: str, *arguments: Any) -> Any:
        return await patiently(lambda: self._pool.fetchrow(self._sql[name], *arguments))

    async def ledgers(self, keys: Sequence[Key]) -> dict[Key, list[LedgerEntry]]:
        """Return the operations of tasks, in the order begun."""
        found: dict[Key, list[LedgerEntry]] = {key: [] for key in keys}
        rows = await self._pool.fetch(self._sql["ledgers"], [k[0] for k in keys], [k[1] for k in keys])
        for tenant, task_id, *entry in rows:
            found[tenant, task_id].append(LedgerEntry(*entry))
        return found

    async def ledger(self, tenant: str, task_id: str) -> list[LedgerEntry]:
        """Return the operations of a task, in the order begun; waits for Postgres through outages."""
        return (await patiently(lambda: self.ledgers([(tenant, task_id)])))[tenant, task_id]

    async def completed(self, tenant: str, task_id: str) -> dict[str, int]:
        """Return the numbers of the facts that hold the results of effects, by step id; waits through outages."""
        rows = await patiently(lambda: self._pool.fetch(self._sql["completed"], tenant, task_id))
        return {row["step_id"]: row["seq"] for row in rows}

    async def effect(
        self, tenant: str, task_id: str, step_id: str, operation_id: str, seq: int
    ) -> tuple[bytes, bytes | None]:
        """Return an operation's arguments, and the result that the fact of this number holds (0: none)."""
        row = await self._read("effect", tenant, task_id, step_id, operation_id, seq)
        return row["arguments"], row["body"]

    async def next_due(self) -> float | None:
        """Seconds until the next task is due (negative: overdue); None when none is."""
        seconds: float | None = await self._pool.fetchval(self._sql["next_due"], self._kinds)
        return seconds

    async def load(self, claimed: Sequence[Claimed]) -> None:
        """Fill in the history of all that is not new, in one query."""
        old = [c for c in claimed if not c.new]
        if not old:
            return
        claims = [c.claim for c in old]
        rows = await self._pool.fetch(
            self._sql["load"], [c.tenant for c in claims], [c.task_id for c in claims], [c.run_from for c in old],
            [c.applied for c in claims], [c.published for c in claims],
        )  # fmt: skip
        for row in rows:
            _FILL[row["what"]](old[row["i"] - 1], row)

    async def mail(self, claims: Sequence[Claim]) -> list[list[Mail]]:
        """Read the inbox rows that these owners have not seen, in order."""
        found: list[list[Mail]] = [[] for _ in claims]
        rows = await self._pool.fetch(
            self._sql["mail"], [c.tenant for c in claims], [c.task_id for c in claims], [c.applied for c in claims]
        )
        for row in rows:
            found[row["i"] - 1].append(
                Mail(row["num"], row["name"], row["step_id"], row["label"], row["status"], row["at"], row["body"])
            )
        return found


def claimed_row(row: Any) -> Claimed:
    """Read a row that a claiming statement returned."""
    claim = Claim(
        row["tenant"], row["task_id"], row["kind"], row["epoch"], row["version"], row["last_seq"], row["published"],
        row["published_at"], row["inbox_head"], row["applied"], row["steps"],
    )  # fmt: skip
    return Claimed(
        claim, row["status"], row["cancelling"], row["input"], row["run"], row["run_from"], row["waiting_for"],
        row["reasons"], row["current_step"], row["code_version"], row["parent"], row["deaths"], row["died"],
        compensating=row["compensating"],
    )  # fmt: skip


def _fact(to: Claimed, row: Any) -> None:
    to.facts.append(
        StoredFact(
            row["num"], row["name"], row["step_id"] or "", row["label"], row["status"], row["digest"], row["attempt"] or 1,
            row["at"], row["body"], row["arguments"], row["note"], row["pos"],
        )
    )  # fmt: skip


def _operation(to: Claimed, row: Any) -> None:
    to.operations.append(
        StoredOperation(
            row["step_id"], row["name"], row["label"], row["status"], row["digest"], row["attempt"], row["num"],
            row["at"], row["worker"], row["body"], row["note"], row["deadline"],
        )
    )  # fmt: skip


def _attempt(to: Claimed, row: Any) -> None:
    to.attempts.append(StoredAttempt(row["step_id"], row["name"], row["num"], row["label"], row["status"], row["at"]))


def _mail(to: Claimed, row: Any) -> None:
    to.mail.append(
        Mail(
            row["num"], row["name"], row["step_id"], row["label"], row["status"], row["at"], row["body"],
            bool(row["attempt"]),
        )
    )  # fmt: skip


def _event(to: Claimed, row: Any) -> None:
    to.backlog.append((row["num"], row["body"]))


_FILL = {"f": _fact, "o": _operation, "a": _attempt, "m": _mail, "e": _event}
