"""The journal: the one writer of checkpoints, ledger and progress (group commit).

Actors hand records in; a writer takes whatever waits, folds it to one row a task, and makes it durable with one fenced
statement (`queries/journal.sql`). No timer: a batch leaves as soon as a connection is free. Two connections take turns,
each with at most half of the live tasks, so that one half computes while the other half commits.

Order: records of one task are written in the order handed in, on one connection at a time. After a refusal every later
record of that task is refused too.

Defeats: a Postgres that loses what it has committed (no `fsync`, a disk that lies, an asynchronous failover)
Then: what is not recorded has not happened: effects are sent again, also by tools that are sent once; a yes is asked for again
Seen: numbers of events that are given a second time; nothing else
"""

import collections
import itertools
import operator
import uuid
from asyncio import Event, Future, get_running_loop, sleep
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, Final

import anyio
import anyio.abc
import asyncpg
import structlog

from outlive.infra import database, failpoints, sql
from outlive.infra.records import AnswerRow, AttemptRow, Claim, OperationRow, Record, Refusal, State

BATCH_MAX: Final = 200
BATCH_MIN: Final = 8
BATCH_BYTES: Final = 32 << 20
"""Results in one statement; Postgres hangs up on a message of a gigabyte."""
LINE_RECORDS: Final = 64
LINE_BYTES: Final = 1 << 20

_STATE_FIELDS: Final = tuple(f.name for f in fields(State))
_columns: Final = operator.attrgetter(*_STATE_FIELDS)
_log = structlog.get_logger("outlive.journal")


UNSTORABLE: Final = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    ValueError,  # the driver's own refusal to encode, lone surrogates included
    OverflowError,
)
"""Postgres or the driver refuses the content itself: sending it again is useless."""


class Refused(Exception):  # reason: a fact, named like the field's words
    """The journal did not take a record; nothing of it is durable.

    Causes: another worker has taken the task over (``fenced``), or Postgres cannot store the content (``unstorable``).
    """

    def __init__(self, claim: Claim, refusal: Refusal, detail: str = "") -> None:
        """Name the task, the kind of refusal and what Postgres said."""
        super().__init__(f"task {claim.task_id} (epoch {claim.epoch}): {refusal}{': ' + detail if detail else ''}")
        self.refusal: Refusal = refusal
        self.detail = detail


def _size(record: Record) -> int:
    return sum(len(fact.body) for fact in record.facts if fact.body is not None)


class Line:
    """One task's queue of records. Its actor alone hands in; a writer alone takes."""

    __slots__ = ("_queue", "claim", "detail", "durable", "held", "records", "since", "taken", "waiters")

    def __init__(self, claim: Claim, queue: "Callable[[Line], None]") -> None:
        """Begin at the claim's version; `queue` asks for a writer."""
        self.claim = claim
        self.durable = claim.version  # version in the table
        self.records: list[Record] = []
        self.held = 0  # bytes of results in them
        self.waiters: list[Future[bool]] = []
        self.taken = False  # queued for a writer, or with one
        self.since = 0.0
        self.detail = ""
        self._queue = queue

    def hand_in(self, record: Record) -> None:
        """Queue a record without waiting for it. Raises `Refused` when the task is no longer ours to write."""
        if self.claim.refused is not None:
            raise Refused(self.claim, self.claim.refused, self.detail)
        claim = self.claim
        claim.version += 1
        claim.steps += record.steps
        if record.applied is None:
            record.applied = claim.applied
        else:
            claim.applied = record.applied
        record.last_seq, record.total_steps = claim.last_seq, claim.steps
        self.records.append(record)
        self.held += _size(record)
        if not self.taken:
            self._queue(self)

    async def commit(self, record: Record) -> bool:
        """Hand in and wait until it is durable.

        Returns:
            True; False when the record would have left the task but mail came in between (the rest of it is durable).

        Raises:
            Refused: it is not durable and never will be.
        """
        self.hand_in(record)
        return await self.flushed()

    async def flushed(self) -> bool:
        """Wait until all that was handed in is durable (see `commit`)."""
        if self.claim.refused is not None:
            raise Refused(self.claim, self.claim.refused, self.detail)
        if not self.records and not self.taken:
            return True
        waiter: Future[bool] = get_running_loop().create_future()
        self.waiters.append(waiter)
        return await waiter

    async def room(self) -> None:
        """Wait while too much is handed in and not durable: 64 records, or 1 MiB of results."""
        if len(self.records) >= LINE_RECORDS or self.held >= LINE_BYTES:
            await self.flushed()

    def take(self) -> "Batch":
        """Move all that waits to a writer; of very much, the first part (then those who wait stay for the rest)."""
        if self.held > BATCH_BYTES and len(self.records) > 1:
            return self._take_part()
        batch = Batch(self, self.records, self.waiters)
        self.records, self.waiters, self.held = [], [], 0
        return batch

    def _take_part(self) -> "Batch":
        sizes = itertools.accumulate(_size(record) for record in self.records)
        count = max(1, sum(size <= BATCH_BYTES for size in sizes))
        batch = Batch(self, self.records[:count], [])
        del self.records[:count]
        self.held = sum(_size(record) for record in self.records)
        return batch

    def refuse(self, refusal: Refusal, detail: str, waiters: Iterable["Future[bool]"]) -> None:
        """Refuse these and all later records."""
        self.claim.refused, self.detail = refusal, detail
        waiting, self.waiters, self.records = self.waiters, [], []
        for waiter in (*waiters, *waiting):
            if not waiter.done():
                waiter.set_exception(Refused(self.claim, refusal, detail))


class Batch:
    """What a writer took from one line."""

    __slots__ = ("line", "records", "settled", "stays", "waiters")

    def __init__(self, line: Line, records: list[Record], waiters: "list[Future[bool]]") -> None:
        """Hold the records in the order handed in."""
        self.line = line
        self.records = records
        self.waiters = waiters
        # Mail came before the leave: the table says so, or here something was handed in behind it (as its answer is).
        self.stays = any(r.state is not None and r.state.leave == "drained" for r in records[:-1])
        self.settled = False  # applied or refused

    def state(self) -> State | None:
        """Fold the rare changes: a later one wins."""
        merged: State | None = None
        for record in self.records:
            if record.state is None:
                continue
            if merged is None:
                merged = record.state
                continue
            for name in _STATE_FIELDS:
                value = getattr(record.state, name)
                if value is not None and not (name == "tell" and value is False):
                    setattr(merged, name, value)
            if record.state.waiting_for is not None:
                merged.wait_until = record.state.wait_until
        if merged is not None and self.stays:
            merged.leave, merged.due_at = None, None
        return merged

    def operations(self) -> Iterable[OperationRow]:
        """Fold to one final image an operation: digest of the first, arguments of the last that brings some."""
        final: dict[tuple[str, str], OperationRow] = {}
        for record in self.records:
            for row in record.operations:
                if (earlier := final.get(row[:2])) is None:
                    final[row[:2]] = row
                    continue
                arguments, note = row.arguments or earlier.arguments, row.note or earlier.note
                final[row[:2]] = row._replace(arguments=arguments, digest=earlier.digest, note=note)
        return final.values()

    def current_step(self) -> str | None:
        """Where the task is."""
        return next((r.current_step for r in reversed(self.records) if r.current_step is not None), None)

    def attempts(self) -> Iterable[AttemptRow]:
        """All attempts that ended."""
        return (row for record in self.records for row in record.attempts)

    def answers(self) -> Iterable[AnswerRow]:
        """Fold to one row an inbox position."""
        final: dict[int, AnswerRow] = {}
        for record in self.records:
            for row in record.answers:
                earlier = final.get(row.pos, row)
                answer = row if earlier.code is None else earlier
                final[row.pos] = answer._replace(taken=earlier.taken or row.taken)
        return final.values()

    def refuse(self, refusal: Refusal, detail: str) -> None:
        """None of it is durable, and nothing later of this task will be."""
        self.settled = True
        self.line.refuse(refusal, detail, self.waiters)

    def done(self) -> None:
        """Tell those who wait that all of it is durable."""
        self.settled = True
        self.line.durable += len(self.records)
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(not self.stays)


def fold(batches: Sequence[Batch]) -> tuple[list[Any], ...]:
    """Turn batches into the statement's parameters $2 to $7: arrays of composites, each with its task's ordinal."""
    tasks: list[Any] = []
    facts: list[Any] = []
    operations: list[Any] = []
    attempts: list[Any] = []
    answers: list[Any] = []
    children: list[Any] = []
    for i, batch in enumerate(batches):
        c, last = batch.line.claim, batch.records[-1]
        state = batch.state()
        tasks.append(
            (i, c.tenant, c.task_id, c.epoch, batch.line.durable, len(batch.records), last.last_seq, c.published,
             c.published_at, last.applied, last.total_steps, batch.current_step(), None if state is None else _columns(state))
        )  # fmt: skip
        operations += [(i, *row) for row in batch.operations()]
        attempts += [(i, *row) for row in batch.attempts()]
        answers += [(i, *row) for row in batch.answers()]
        for record in batch.records:
            facts += [_fact(i, fact) for fact in record.facts]
            children += [(i, *row) for row in record.children]
    return tasks, facts, operations, attempts, answers, children


def _fact(i: int, f: Any) -> tuple[Any, ...]:
    return (i, f[0], f[1], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10], f[11], f[12], f[2], f[13], f[14])


class Journal:
    """Group commit over a few connections of one worker.

    Args:
        dsn: of the store.
        incarnation: the worker; every record is fenced by it.
        committed: called in order after each commit, with the claim and the records now durable.
        live: how many tasks this worker has in memory.
        connections: writers; 2 by default.
    """

    def __init__(
        self,
        dsn: str,
        incarnation: uuid.UUID,
        *,
        committed: Callable[[Claim, list[Record]], None],
        live: Callable[[], int],
        connections: int = 2,
    ) -> None:
        """See the class."""
        self._dsn = dsn
        self._incarnation = incarnation
        self._committed = committed
        self._live = live
        self._connections = connections
        self._statements = sql.load("journal")
        self._queue: collections.deque[Line] = collections.deque()
        self._work = Event()
        self._busy: set[int] = set()
        self._since: dict[int, float] = {}
        self.last_commit_at = 0.0
        self.commits = 0

    def open(self, claim: Claim) -> Line:
        """Begin the line of a task that was just claimed."""
        return Line(claim, self.queue)

    def queue(self, line: Line) -> None:
        """Ask for a writer. For lines alone."""
        line.taken = True
        line.since = get_running_loop().time()
        self._queue.append(line)
        self._work.set()

    @property
    def lag(self) -> float:
        """Seconds for which the oldest record has waited; 0 when nothing waits."""
        oldest = min([*self._since.values(), *(line.since for line in self._queue)], default=None)
        return 0.0 if oldest is None else get_running_loop().time() - oldest

    async def run(self, status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; `status` is told when the connections stand."""
        async with anyio.create_task_group() as group:
            for number in range(self._connections):
                await group.start(self._writer, number, name=f"journal-{number}")
            status.started()

    async def idle(self) -> None:
        """Wait until everything handed in so far is durable or refused."""
        while self._queue or self._busy:  # noqa: ASYNC110  # the hot path tells nobody
            await sleep(0.002)

    async def _writer(self, number: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        link = await self._first()
        task_status.started()
        try:
            while True:
                while not self._queue:
                    self._work.clear()
                    await self._work.wait()
                await sleep(0)  # whoever is ready to run hands in too: larger batches, and no later
                if not self._queue:
                    continue  # the other writer was quicker
                self._busy.add(number)
                batches = self._take()
                self._since[number] = batches[0].line.since
                link = await self._write(link, batches)
                self._busy.discard(number)
                del self._since[number]
        finally:
            link.connection.terminate()

    def _take(self) -> list[Batch]:
        most = max(BATCH_MIN, min(BATCH_MAX, (self._live() + 1) // 2))
        batches: list[Batch] = []
        size = 0
        while self._queue and len(batches) < most and size < BATCH_BYTES:
            line = self._queue.popleft()
            size += line.held
            batches.append(line.take())
        return batches

    async def _first(self) -> "Link":
        """Connect; a journal that is restarted in an outage waits for its end."""
        while True:
            try:
                return await self._connect()
            except database.TRANSIENT as error:
                _log.warning("journal waits for Postgres", error=repr(error))
                await sleep(0.2)

    async def _connect(self) -> "Link":
        return await Link.open(self._dsn, self._incarnation, self._statements)

    async def _write(self, link: "Link", batches: list[Batch]) -> "Link":
        """Write a batch to its end: through outages (sent again until fenced), halved where the content is refused."""
        pause = 0.02
        while batches := [batch for batch in batches if not batch.settled]:
            try:
                await self._attempt(link, batches)
            except UNSTORABLE as error:
                await self._halve(link, batches, error)
            except database.TRANSIENT as error:
                _log.warning("journal waits for Postgres", error=repr(error))
                link.connection.terminate()
                await sleep(pause)
                pause = min(pause * 2, 1.0)
                link = await self._reconnect(link)
        return link

    async def _reconnect(self, link: "Link") -> "Link":
        try:
            return await self._connect()
        except database.TRANSIENT:
            return link  # closed: the next attempt fails at once and waits longer

    async def _halve(self, link: "Link", batches: list[Batch], error: Exception) -> None:
        batches = [batch for batch in batches if not batch.settled]
        if len(batches) == 1:
            _log.error("a record cannot be stored", task=batches[0].line.claim.task_id, error=str(error))
            batches[0].refuse("unstorable", str(error))
            return
        middle = len(batches) // 2
        for half in (batches[:middle], batches[middle:]):
            try:
                if half:
                    await self._attempt(link, half)
            except UNSTORABLE as again:
                await self._halve(link, half, again)

    async def _attempt(self, link: "Link", batches: list[Batch]) -> None:
        if failpoints.armed:
            await _hit(batches, "before_commit")
        refused = await link.batch(batches)
        if failpoints.armed:
            await _hit(batches, "after_commit")
        self.commits += 1
        self.last_commit_at = get_running_loop().time()
        again: list[Batch] = []
        for i, batch in enumerate(batches):
            if i not in refused:
                self._applied(batch)
        if refused:
            again = await self._judge(link, [batches[i] for i in sorted(refused)])
        if again:
            await self._attempt(link, again)

    def _applied(self, batch: Batch) -> None:
        line = batch.line
        if not batch.stays and any(r.state is not None and r.state.leave for r in batch.records):
            line.claim.left = True
        batch.done()
        self._committed(line.claim, batch.records)
        if line.records:
            self.queue(line)
        else:
            line.taken = False
            # Asked for between the take and now, with nothing more to write.
            for waiter in line.waiters:
                if not waiter.done():
                    waiter.set_result(True)
            line.waiters = []

    async def _judge(self, link: "Link", refused: list[Batch]) -> list[Batch]:
        """Read refused tasks once: applied before, mail in the way (written again without the leave), or fenced."""
        again: list[Batch] = []
        for batch, row in zip(refused, await link.seen(refused), strict=True):
            claim, durable = batch.line.claim, batch.line.durable
            ours = row["owner"] == self._incarnation and row["epoch"] == claim.epoch
            left = row["owner"] is None and row["epoch"] == claim.epoch
            if (ours or left) and row["version"] == durable + len(batch.records):
                self._applied(batch)
            elif ours and row["version"] == durable and not batch.stays:
                claim.inbox_head = row["inbox_head"]
                batch.stays = True
                again.append(batch)
            else:
                batch.refuse("fenced", f"now epoch {row['epoch']} of {row['owner']}")
        return again


async def _hit(batches: Sequence[Batch], where: str) -> None:
    about: dict[str, list[str]] = {}
    for record in (record for batch in batches for record in batch.records if record.point):
        names = [row.name for row in record.operations] or [fact.name for fact in record.facts if fact.name]
        about.setdefault(record.point, []).extend(names or [child.kind for child in record.children])
    for point, names in about.items():
        await failpoints.hit(f"{point}.{where}", ", ".join(dict.fromkeys(names)))


class Link:
    """One connection with its statements prepared."""

    __slots__ = ("_batch", "_incarnation", "_replan", "_seen", "connection")

    def __init__(self, connection: Any, incarnation: uuid.UUID, batch: Any, seen: Any) -> None:
        """Hold prepared statements; use `open`."""
        self.connection = connection
        self._incarnation = incarnation
        self._batch = batch
        self._seen = seen
        self._replan = database.Replan()

    @classmethod
    async def open(cls, dsn: str, incarnation: uuid.UUID, statements: Any) -> "Link":
        """Connect with the journal's planner settings and warm the statements."""
        connection = await database.connect(dsn, application_name=f"outlive:{incarnation}", journal=True)
        try:
            batch = await connection.prepare(statements["batch"])
            await batch.fetch(incarnation, [], [], [], [], [], [])
            return cls(connection, incarnation, batch, await connection.prepare(statements["seen"]))
        except BaseException:
            connection.terminate()
            raise

    async def batch(self, batches: Sequence[Batch]) -> set[int]:
        """Write; return the ordinals that were refused."""
        rows = await self._batch.fetch(self._incarnation, *fold(batches))
        await self._replan.after(self.connection)
        return {row[0] for row in rows}

    async def seen(self, batches: Sequence[Batch]) -> Any:
        """Read the task rows of refused batches, in their order."""
        claims = [batch.line.claim for batch in batches]
        return await self._seen.fetch([c.tenant for c in claims], [c.task_id for c in claims])
