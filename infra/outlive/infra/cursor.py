"""The cursor of a command stream: how far it was taken in, and who may take in more.

Whoever holds the row writes commands and cursor in one transaction. Each take raises the epoch, so the statements of a
former holder, even one that is under way, find no row and write nothing.
"""

import contextlib
import uuid
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import anyio
import asyncpg

from outlive.infra import database, failpoints, sql
from outlive.infra.admission import Admission, Known, Mailbox, Seen
from outlive.infra.intake import Incoming

_GONE: Final = (*database.TRANSIENT, asyncpg.PostgresError)


class Deposed(Exception):
    """The cursor is no longer ours, or not where we left it: nothing was written. Take it again and read it anew."""


class Position(NamedTuple):
    """How far the stream was taken in."""

    seq: int
    """Sequence of the last message that is durable in the store; 0 = none."""
    created: str
    """The stream's time of creation."""
    at: str
    """Time of that message, in the stream."""
    digest: bytes
    """Its subject and body."""


class Cursor:
    """A connection of its own that wants, and then holds, the cursor of one stream: ``async with Cursor(...)``.

    Args:
        dsn: of the store.
        stream: the name of the stream.
        me: our incarnation.
        lease: seconds for which one renewal holds.

    Raises:
        OSError, asyncpg.PostgresError: from every method; see `outlive.infra.database.TRANSIENT`.
    """

    position: Position
    purged: int
    """Messages below this sequence were removed from the stream."""

    def __init__(self, dsn: str, stream: str, me: uuid.UUID, lease: float) -> None:
        """See the class."""
        self._dsn, self._stream, self._me, self._lease = dsn, stream, me, lease
        self._epoch = 0
        self._sql = sql.load("ingest")
        self._connection: asyncpg.Connection

    async def __aenter__(self) -> Self:
        """Connect, and have the statements planned before there is work."""
        self._connection = await database.connect(self._dsn, application_name=f"outlive:{self._me}", journal=True)
        self._replan = database.Replan()
        try:
            await self._warm_up()
        except BaseException:
            self._connection.terminate()
            raise
        return self

    async def _warm_up(self) -> None:
        await self._connection.execute(self._sql["begin"], self._stream)
        nobody = ("", self._me, 0, 0)
        await self._connection.fetchrow(self._sql["look"], *nobody, [], [], [], [], False)
        nothing = Admission(Seen(datetime.now(UTC), {}, {}, ()))
        await self._connection.fetchrow(self._sql["admit"], *nobody, 0, "", b"", 0.0, nothing.now, *nothing.columns())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the cursor up, if we hold it and the connection still works, and disconnect."""
        # Where it fails, the lease ends it.
        with anyio.move_on_after(1, shield=True), contextlib.suppress(*_GONE):
            await self._release()
            await self._connection.close()
        self._connection.terminate()

    async def _release(self) -> None:
        if self._connection.is_in_transaction():
            await self._connection.reset()
        if self._epoch:
            await self._connection.execute(self._sql["release"], self._stream, self._me, self._epoch)

    async def take(self, dead: Collection[uuid.UUID]) -> bool:
        """Try to take the cursor: when it is free, expired, ours before, or held by one of the `dead`."""
        row = await self._connection.fetchrow(self._sql["take"], self._stream, self._me, self._lease, list(dead))
        if row is None:
            return False
        self._epoch, self.purged = row["epoch"], row["purged"]
        self.position = Position(row["seq"], row["created"], row["at"], row["digest"])
        return True

    async def renew(self) -> datetime:
        """Hold the cursor for another lease; return the database's time. Raises `Deposed`."""
        now: datetime | None = await self._connection.fetchval(
            self._sql["renew"], self._stream, self._me, self._epoch, self._lease, self.purged
        )
        if now is None:
            raise Deposed
        return now

    async def restart(self, created: str) -> None:
        """Begin before the first message of the stream that was created then. Raises `Deposed`."""
        statement = self._sql["restart"]
        if not await self._connection.fetchval(statement, self._stream, self._me, self._epoch, created):
            raise Deposed
        self.position, self.purged = Position(0, created, "", b""), 0

    async def admit(self, batch: Sequence[Incoming]) -> Admission:
        """Make a batch durable, in the order of the stream: all of it, with the cursor behind it, or nothing.

        Raises:
            Deposed: nothing was written.
        """
        last = batch[-1].message
        async with self._connection.transaction():
            admission = Admission(await self._look(batch))
            for incoming in batch:
                admission.admit(incoming)
            if failpoints.armed:
                await failpoints.hit("ingest.before_commit")
            await self._write(admission, (last.seq, last.at, last.digest))
        self.position = Position(last.seq, self.position.created, last.at, last.digest)
        return admission

    async def _look(self, batch: Sequence[Incoming]) -> Seen:
        commands = {(each.tenant, each.command_id) for each in batch if each.command_id}
        tasks = {(each.tenant, each.task_id) for each in batch if each.command_id and each.refusal is None}
        row = await self._connection.fetchrow(
            self._sql["look"], self._stream, self._me, self._epoch, self.position.seq,
            *_pairs(commands), *_pairs(tasks), any(each.submission for each in batch),
        )  # fmt: skip
        if row is None:
            raise Deposed
        return Seen(
            row["now"],
            {(tenant, command_id): Known(*known) for tenant, command_id, *known in row["commands"]},
            {(tenant, task_id): Mailbox(tenant, task_id, *task) for tenant, task_id, *task in row["tasks"]},
            row["kinds"],
        )

    async def _write(self, admission: Admission, after: tuple[int, str, bytes]) -> None:
        row = await self._connection.fetchrow(
            self._sql["admit"], self._stream, self._me, self._epoch, self.position.seq, *after, self._lease,
            admission.now, *admission.columns(),
        )  # fmt: skip
        await self._replan.after(self._connection)
        # A task that somebody else (a parent) made since `look` must be looked at again.
        if row is None or row["moved"] != 1 or row["made"] != admission.made:
            raise Deposed


def _pairs(keys: Collection[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    ordered = sorted(keys)
    return [first for first, _ in ordered], [second for _, second in ordered]
