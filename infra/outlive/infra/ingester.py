"""The ingester: takes commands from the stream into the store, in order, each once.

Every worker runs one; the one that holds the stream's cursor works, the others look for it twice a second. It reads
without acknowledgements behind the cursor, makes a batch durable together with the cursor, wakes whom it concerns,
sends the answers that are decided, and goes on. Whatever fails, it begins again at the cursor: a command is neither
lost nor applied twice, and each task's commands keep their order.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from outlive.infra import database, failpoints, intake, streams
from outlive.infra.admission import Admission, Wake
from outlive.infra.bus import NO_STREAM, Bus, BusError, JetStreamError
from outlive.infra.cursor import Cursor, Deposed, Position
from outlive.infra.intake import Incoming
from outlive.infra.journal import UNSTORABLE
from outlive.infra.pull import Feed, Interrupted, Message, Source
from outlive.infra.settings import Settings
from outlive.protocol import codec
from outlive.protocol.subjects import Subjects

__all__ = ["Ingester", "Wake"]

STANDBY: Final = 0.5
"""Seconds between two looks at a cursor that another ingester holds."""

PURGE: Final = 60.0
"""Seconds between two purges behind the cursor."""

_LARGE: Final = 64 * 1024  # bytes of a body above which a thread decodes it
_PAUSE: Final = 0.05  # after an interruption; doubled after each failure in a row
_LONGEST_PAUSE: Final = 2.0

_log = structlog.get_logger("outlive.ingester")


class Ingester:
    """Takes one command stream in; see the module.

    Args:
        dsn: of the store; a connection of its own is opened.
        bus: connected.
        subjects: of this installation.
        incarnation: of this process start.
        settings: `lease`, `input_limit` and `command_retention_hours` are used.
        wake: called after each commit with those who have something to do, here or elsewhere; must not block.

    Attributes:
        leading: whether this one holds the cursor.
        last_command_at: the database's time at which the last command was taken in; None = none yet.
    """

    def __init__(
        self,
        dsn: str,
        bus: Bus,
        subjects: Subjects,
        incarnation: uuid.UUID,
        settings: Settings,
        wake: Callable[[Wake], None],
    ) -> None:
        """See the class."""
        self.leading = False
        self.last_command_at: datetime | None = None
        self._dsn, self._bus, self._subjects, self._me = dsn, bus, subjects, incarnation
        self._settings, self._wake = settings, wake
        self._source = Source(bus, subjects.commands_stream)
        self._dead: set[uuid.UUID] = set()
        self._nudge = asyncio.Event()
        self._position = Position(0, "", "", b"")
        self._unsettled: float | None = asyncio.get_running_loop().time()
        self._purge_at = 0.0

    async def run(self) -> None:
        """Wait for the cursor and work, until cancelled.

        Raises:
            asyncpg.PostgresError: what another try would not mend (no such table, no right to it).
        """
        pause = _PAUSE
        while True:
            try:
                async with Cursor(self._dsn, self._source.stream, self._me, self._settings.lease) as cursor:
                    await self._stand_by(cursor)
                    pause = _PAUSE
                    await self._lead(cursor)
            except Deposed:
                _log.info("ingester.deposed", stream=self._source.stream)
            except database.TRANSIENT as error:
                _log.warning("ingester.store_unreachable", error=str(error) or type(error).__name__, retry_in=pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            finally:
                self.leading = False
                self._settle(settled=False)

    def seize(self, incarnations: Iterable[uuid.UUID]) -> None:
        """Know these incarnations dead: if one of them holds the cursor, take it at once."""
        self._dead.update(incarnations)
        self._nudge.set()

    @property
    def behind(self) -> float:
        """Seconds for which it has not been where it should be: waiting at the end of the stream, or for the cursor."""
        return 0.0 if self._unsettled is None else asyncio.get_running_loop().time() - self._unsettled

    def _settle(self, *, settled: bool) -> None:
        if settled:
            self._unsettled = None
        elif self._unsettled is None:
            self._unsettled = asyncio.get_running_loop().time()

    async def lag(self) -> int:
        """Count the messages of the stream behind the cursor, as far as this ingester knows it.

        Raises:
            outlive.infra.bus.BusError: NATS does not tell.
        """
        extent = await self._source.extent()
        return max(0, extent.last - self._position.seq)

    async def _stand_by(self, cursor: Cursor) -> None:
        """Return once the cursor is ours."""
        while not await cursor.take(self._dead):
            self._settle(settled=True)
            self._nudge.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STANDBY):
                    await self._nudge.wait()
        self._position = cursor.position
        self.leading = True
        _log.info("ingester.leads", stream=self._source.stream, after=cursor.position.seq)

    async def _lead(self, cursor: Cursor) -> None:
        """Follow the stream through everything that NATS may do; leaves only by an exception."""
        pause = _PAUSE
        while True:
            try:
                await self._follow(cursor)
            except Interrupted as doubt:
                _log.debug("ingester.interrupted", why=str(doubt))
                pause = _PAUSE
            except BusError as error:
                _log.warning("ingester.nats_unreachable", error=str(error), retry_in=pause)
                await self._mend(error)
                pause = min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)
            await cursor.renew()

    async def _mend(self, error: BusError) -> None:
        """Make the stream again if it is gone; else wait for NATS, not longer than the cursor is ours."""
        with contextlib.suppress(BusError):
            if isinstance(error, JetStreamError) and error.err_code == NO_STREAM:
                await streams.ensure(self._bus, self._subjects, self._settings)
            else:
                await self._bus.wait_connected(self._settings.lease / 3)

    async def _follow(self, cursor: Cursor) -> None:
        """Read behind the cursor with one consumer, until it is interrupted."""
        async with Feed(self._source, cursor.position.seq + 1) as feed:
            # Asked after the consumer was made: a stream that is replaced from now on takes the consumer with it.
            if created := await self._replaced(cursor.position):
                known = cursor.position
                await cursor.restart(created)
                if known.created or known.seq:  # else nothing was read so far
                    _log.warning("ingester.reads_from_start", stream=self._source.stream, was_at=known.seq)
                raise Interrupted("the stream is another one, or lost its end" if known.created else "first start")
            while True:
                self._settle(settled=True)
                messages = await feed.batch(self._settings.lease / 3)
                self._settle(settled=False)
                if messages:
                    await self._take_in(cursor, messages)
                else:
                    await cursor.renew()
                await self._purge(cursor)

    async def _replaced(self, position: Position) -> str | None:
        """Return the time of creation of the stream if it is not the one that was read so far, or lost its end."""
        extent = await self._source.extent()
        if extent.created != position.created or extent.last < position.seq:
            return extent.created
        if position.seq and (last := await self._source.message(position.seq)):
            return None if (last.at, last.digest) == (position.at, position.digest) else extent.created
        return None  # purged: nothing speaks against it

    async def _take_in(self, cursor: Cursor, messages: Sequence[Message]) -> None:
        created = cursor.position.created
        await self._admit(cursor, [await self._read(message, created) for message in messages])

    async def _read(self, message: Message, created: str) -> Incoming:
        arguments = (message, self._subjects, created, self._settings.input_limit)
        if len(message.body) > _LARGE:
            return await asyncio.to_thread(intake.read, *arguments)
        return intake.read(*arguments)

    async def _admit(self, cursor: Cursor, batch: Sequence[Incoming]) -> None:
        """Make a batch durable; halve one that Postgres refuses, until the bad message stands alone."""
        try:
            admission = await cursor.admit(batch)
        except UNSTORABLE as error:
            if len(batch) == 1:
                reason = str(error).partition("\n")[0]  # the rest is the row's content
                _log.warning("ingester.dead_letter", seq=batch[0].message.seq, reason=reason)
                admission = await cursor.admit([batch[0].bury(f"it cannot be stored: {reason}")])
            else:
                middle = len(batch) // 2
                await self._admit(cursor, batch[:middle])
                await self._admit(cursor, batch[middle:])
                return
        self._position, self.last_command_at = cursor.position, admission.now
        await self._announce(admission)

    async def _announce(self, admission: Admission) -> None:
        """Tell what is durable now. Nothing depends on it: everyone polls, and answers can be asked for."""
        if failpoints.armed:
            await failpoints.hit("ingest.after_commit")
        wake = admission.wake()
        if wake:
            self._wake(wake)
        with contextlib.suppress(BusError):
            for owner, keys in wake.owners.items():
                if owner != self._me:
                    await self._bus.publish(self._subjects.wake(str(owner)), codec.encode(keys))
            if wake.due or wake.mail:
                body = codec.encode({"due": wake.due, "mail": wake.mail})
                await self._bus.publish(self._subjects.wake("all"), body)
            for tenant, answer in admission.answers:
                await self._bus.publish(self._subjects.answer(tenant, answer.task_id), codec.encode(answer))

    async def _purge(self, cursor: Cursor) -> None:
        """Remove from the stream what was taken in long ago; the message at the cursor stays, to be recognised by."""
        clock = asyncio.get_running_loop().time()
        if clock < self._purge_at:
            return
        self._purge_at = clock + PURGE
        horizon = await cursor.renew() - timedelta(hours=self._settings.command_retention_hours)
        try:
            kept = await self._source.first_since(horizon)
            below = min(kept or cursor.position.seq, cursor.position.seq)
            if below > cursor.purged:
                await self._source.purge_below(below)
                cursor.purged = below
        except BusError as error:
            _log.warning("ingester.not_purged", error=str(error))
