"""Leaving remotes alone: the limits that tools declare, and the pauses that remotes ask for, shared by all workers.

Tokens are leased in the database, by its clock, for the calls that are about to begin, and never kept in stock: what a
killed worker held runs out in a moment and was counted all the while. A pause is known to its worker at once, to the
others when it is committed and told (or, if that message is lost, with their next look).
"""

import asyncio
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any, Final, NamedTuple

import anyio
import anyio.abc
import msgspec
import structlog

from outlive.infra import database, sql
from outlive.infra.clock import Clock
from outlive.infra.database import Pool, patiently
from outlive.protocol import bucket
from outlive.protocol.bucket import Bucket, Lease, Limit

Door = tuple[str, str]
"""(tenant, tool): one remote, as far as limits go."""

LEASE: Final = 2.0
"""Seconds within which a call must begin once it has its token; an effect's intent is committed in between."""

FAREWELL: Final = 1.0
"""Seconds at the end in which tokens may be given back; what is not runs out by itself."""

SPREAD: Final = (0.1, 5.0)
"""Those who wait for the end of a pause return within this share of it, at most so many seconds, after that."""

_log = structlog.get_logger("outlive.buckets")
_leases: Final = msgspec.json.Decoder(tuple[Lease, ...])


class Pause(msgspec.Struct, frozen=True):
    """What workers tell each other: a tool's remote is left alone until then; null: no longer."""

    tenant: str
    tool: str
    until: datetime | None


class Token:
    """The right to begin one call, for a moment."""

    __slots__ = ("_batch", "_open")

    def __init__(self, batch: "_Batch") -> None:
        """One of a batch that was leased together."""
        self._batch = batch
        self._open = True

    def spend(self) -> bool:
        """Begin the call now. False: too late, the token has run out."""
        if not self._open:
            return False
        left = bucket.spend(self._batch.lease, self._batch.clock.now())
        if left is not None:
            self._batch.lease = left
        self.drop()
        return left is not None

    def drop(self) -> None:
        """Make no call after all."""
        if self._open:
            self._open = False
            self._batch.settle()


class _Batch:
    """Tokens that were leased together; given back when the last one is spent or dropped."""

    __slots__ = ("_out", "_returned", "clock", "lease")

    def __init__(self, lease: Lease, out: int, clock: Clock, returned: Callable[[Lease], None]) -> None:
        self.lease = lease
        self.clock = clock
        self._out = out
        self._returned = returned

    def settle(self) -> None:
        self._out -= 1
        if self._out <= 0:
            self._returned(self.lease)


class _Asker(NamedTuple):
    answer: "asyncio.Future[Token | datetime]"
    turn: bool  # was told this time; who was not comes behind all that wait


class _Queue:
    """Who waits for tokens of one bucket in this worker."""

    __slots__ = ("again", "asking", "limit", "lock", "returned", "waiting")

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self.lock = asyncio.Lock()
        self.asking: list[_Asker] = []
        self.waiting = 0  # that have been told a time and are in memory
        self.again: datetime | None = None  # asking before is useless
        self.returned: list[Lease] = []  # ended, to be taken out of the row


class Buckets:
    """The limits and pauses of all tools, as one worker sees them. Only its event loop touches it.

    Args:
        pool: of the store.
        holder: under whose name tokens are leased: the worker's incarnation.
        clock: the database's time.
        tell: hands a message of `Pause` to the other workers; may be lost.
        poll: seconds between two looks at the pauses of other workers.
    """

    def __init__(
        self, pool: Pool, holder: str, clock: Clock, tell: Callable[[Sequence[Pause]], None], *, poll: float = 1.0
    ) -> None:
        """See the class."""
        self._pool, self._holder, self._clock, self._tell, self._poll = pool, holder, clock, tell, poll
        self._sql = sql.load("buckets")
        self._random = Random()
        self._leases = 0
        self._queues: dict[Door, _Queue] = {}
        self._pauses: dict[Door, datetime] = {}
        self._unwritten: dict[Door, datetime] = {}
        self._heard: dict[Door, datetime | None] = {}  # since the last look at the table began
        self._work = asyncio.Event()

    async def run(self, status: anyio.abc.TaskStatus[None]) -> None:
        """Know all pauses, then serve until cancelled: write pauses, give tokens back, look for pauses of others."""
        await patiently(self._look)
        status.started()
        loop = asyncio.get_running_loop()
        look_at = loop.time() + self._poll
        try:
            while True:
                with anyio.move_on_after(max(0.0, look_at - loop.time())):
                    await self._work.wait()
                self._work.clear()
                await patiently(self._write)
                if loop.time() >= look_at:
                    await patiently(self._look)
                    look_at = loop.time() + self._poll
        finally:
            with anyio.move_on_after(FAREWELL, shield=True), suppress(*database.TRANSIENT):
                await self._write()

    # --- pauses

    @property
    def quiet(self) -> bool:
        """True while no remote at all wants to be left alone: then a tool without a limit need not ask."""
        return not self._pauses

    def paused(self, door: Door) -> datetime | None:
        """Return until when a remote wants to be left alone, if it does."""
        until = self._pauses.get(door)
        if until is not None and until <= self._clock.now():
            del self._pauses[door]
            return None
        return until

    def pause(self, door: Door, until: datetime) -> None:
        """Leave a remote alone until then, in this worker at once; the store and the others are told."""
        if until > (self.paused(door) or self._clock.now()):
            self._know(door, until)
            self._unwritten[door] = until
            self._work.set()

    async def lift(self, door: Door) -> None:
        """End a pause before its time; waits for Postgres through outages."""
        self._unwritten.pop(door, None)
        await patiently(partial(self._change, door, None, bucket.lift))
        self.hear([ended := Pause(*door, None)])
        self._tell([ended])

    def hear(self, pauses: Sequence[Pause]) -> None:
        """Take in what another worker has committed."""
        for told in pauses:
            door = (told.tenant, told.tool)
            self._heard[door] = told.until
            if told.until is None:
                self._forget(door)
            elif told.until > (self.paused(door) or self._clock.now()):
                self._know(door, told.until)

    def _know(self, door: Door, until: datetime) -> None:
        if door not in self._pauses:
            _log.info("a remote is left alone, as it asked", tenant=door[0], tool=door[1], until=until.isoformat())
        self._pauses[door] = until

    def _forget(self, door: Door) -> None:
        self._pauses.pop(door, None)
        if (queue := self._queues.get(door)) is not None:
            queue.again = None

    async def _look(self) -> None:
        """Take the pauses from the table: others may have ended them, or their messages were lost."""
        self._heard = {}
        rows = await self._pool.fetch(self._sql["paused"])
        found = {(row["tenant"], row["tool"]): row["paused_until"] for row in rows}
        newer = self._heard.keys() | self._unwritten.keys()
        for door in self._pauses.keys() - found.keys() - newer:
            self._forget(door)
        now = self._clock.now()
        for door in found.keys() - newer:
            if found[door] > now:
                self._know(door, found[door])

    async def _write(self) -> None:
        """Write what has gathered: pauses, and leases that have ended."""
        for door, until in list(self._unwritten.items()):
            limit = self._queues[door].limit if door in self._queues else None
            await self._change(door, limit, partial(_paused, until))
            if self._unwritten.get(door) == until:
                del self._unwritten[door]
            self._tell([Pause(*door, until)])
        for door, queue in list(self._queues.items()):
            if queue.returned:
                async with queue.lock:
                    await self._give_back(door, queue)

    # --- tokens

    async def enter(self, door: Door, limit: Limit | None, *, turn: bool = False) -> Token | datetime | None:
        """Ask whether a call may begin now.

        Args:
            door: whose remote.
            limit: what the tool declares.
            turn: the caller was told a time before, and it has come.

        Returns:
            None where nothing stands in the way, a token to spend where there is a limit, or the time at which it is
            worth asking again.
        """
        now = self._clock.now()
        if (until := self.paused(door)) is not None:
            share, most = SPREAD
            return until + timedelta(seconds=self._random.uniform(0, min(most, share * (until - now).total_seconds())))
        if limit is None:
            return None
        queue = self._queues.setdefault(door, _Queue(limit))
        queue.limit = limit
        if (queue.waiting and not turn) or (queue.again is not None and now < queue.again):
            return _behind(queue, max(now, queue.again or now), 0 if turn else queue.waiting)
        return await self._granted(door, queue, turn=turn)

    @contextmanager
    def waiting(self, door: Door) -> Generator[None]:
        """Count among those who wait for a token: others are told a time behind them."""
        queue = self._queues.get(door)
        if queue is None:
            yield
            return
        queue.waiting += 1
        try:
            yield
        finally:
            queue.waiting -= 1

    async def _granted(self, door: Door, queue: _Queue, *, turn: bool) -> Token | datetime:
        """Ask for a token together with all who ask meanwhile."""
        mine: asyncio.Future[Token | datetime] = asyncio.get_running_loop().create_future()
        queue.asking.append(_Asker(mine, turn))
        try:
            async with queue.lock:
                if not mine.done():
                    await self._ask(door, queue)
            return mine.result()
        except BaseException:
            if not mine.done():
                mine.cancel()
            elif not mine.cancelled() and isinstance(token := mine.result(), Token):
                token.drop()
            raise

    async def _ask(self, door: Door, queue: _Queue) -> None:
        batch, queue.asking = _living(queue.asking), []
        try:
            granted, now = await patiently(partial(self._take, door, queue, len(batch)))
        except BaseException:
            queue.asking = [*batch, *queue.asking]
            raise
        batch = _living(batch)
        given = min(len(batch), granted.lease.tokens) if granted.lease is not None else 0
        if granted.lease is not None:
            held = _Batch(granted.lease, max(given, 1), self._clock, partial(self._returned, queue))
            for asker in batch[:given]:
                asker.answer.set_result(Token(held))
            if not given:
                held.settle()  # all who asked have left
        # A lease takes up room for its whole life, and is mostly given back at once: so it is worth asking earlier.
        soon = max(now, granted.bucket.at) + timedelta(seconds=queue.limit.interval)
        queue.again = None if given == len(batch) else soon if given else min(granted.again, soon)
        for n, asker in enumerate(batch[given:]):
            asker.answer.set_result(_behind(queue, queue.again or now, n if asker.turn else queue.waiting + n))

    async def _take(self, door: Door, queue: _Queue, want: int) -> tuple[bucket.Granted, datetime]:
        """Lease tokens in one transaction, which also takes leases that have ended out of the row."""
        self._leases += 1
        holder, limit, returned = f"{self._holder}.{self._leases}", queue.limit, list(queue.returned)
        found: list[tuple[bucket.Granted, datetime]] = []

        def take(row: Bucket, now: datetime) -> Bucket:
            row = _without(row, limit, now, returned)
            found.append((bucket.take(row, limit, now, holder, want=want, last=LEASE), now))
            return found[-1][0].bucket

        await self._change(door, limit, take)
        queue.returned = [lease for lease in queue.returned if lease not in returned]
        return found[-1]

    def _returned(self, queue: _Queue, lease: Lease) -> None:
        queue.returned.append(lease)
        self._work.set()

    async def _give_back(self, door: Door, queue: _Queue) -> None:
        limit, returned = queue.limit, list(queue.returned)
        if returned:
            await self._change(door, limit, lambda row, now: _without(row, limit, now, returned))
            queue.returned = [lease for lease in queue.returned if lease not in returned]

    # --- rows

    async def _change(self, door: Door, limit: Limit | None, change: Callable[[Bucket, datetime], Bucket]) -> None:
        """Lock a row, change it, write it back."""
        async with self._pool.acquire() as connection, connection.transaction():
            row = await connection.fetchrow(self._sql["lock"], *door)
            if row is None:
                await connection.execute(self._sql["add"], *door)
                row = await connection.fetchrow(self._sql["lock"], *door)
            assert row is not None
            now: datetime = row["now"]
            new = change(_bucket(row, limit), now)
            paused = new.at if new.at > now else None
            await connection.execute(
                self._sql["write"], *door, new.tokens, new.at, msgspec.json.encode(new.leases), paused
            )


def _bucket(row: Mapping[str, Any], limit: Limit | None) -> Bucket:
    """Read a row; of one that nobody has taken from, all tokens are there."""
    if row["tokens"] is None:
        return bucket.full(limit, row["at"])
    return Bucket(row["tokens"], row["at"], _leases.decode(row["leases"]))


def _without(row: Bucket, limit: Limit, now: datetime, ended: Sequence[Lease]) -> Bucket:
    row = bucket.refill(row, limit, now)
    for lease in ended:
        row = bucket.give_back(row, limit, lease.holder, unspent=lease.tokens)
    return row


def _paused(until: datetime, row: Bucket, _now: datetime) -> Bucket:
    return bucket.pause(row, until)


def _living(askers: Sequence[_Asker]) -> list[_Asker]:
    return [asker for asker in askers if not asker.answer.cancelled()]


def _behind(queue: _Queue, first: datetime, ahead: int) -> datetime:
    """When it is the turn of one who comes behind so many."""
    return first + timedelta(seconds=queue.limit.interval * ahead)
