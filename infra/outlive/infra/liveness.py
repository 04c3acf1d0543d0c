"""Heartbeats and the death signal.

A worker is known by its incarnation, lives in one row, and keeps two promises: a lease, renewed by a heartbeat on a
connection and thread of its own, and a session advisory lock, which Postgres frees within milliseconds when the
process is killed. The heartbeat stops when the event loop has not ticked for a third of the lease, so a frozen worker
loses its tasks although its threads live.
"""

import asyncio
import json
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

import anyio
import asyncpg
import structlog

from outlive.infra import database, sql
from outlive.infra.clock import Clock, boottime

LOCK_CLASS: Final = 0x0071AE
END: Final = 3.0
"""Seconds that the last words to Postgres may take; without them the worker is found dead, which costs nobody a task."""
PROTOCOL: Final = 1
"""Version of the protocol that this code speaks; ingester and clerk run on the newest one alive."""

_log = structlog.get_logger("outlive.liveness")


class Heartbeat:
    """Keeps one incarnation's row and lock from a thread of its own.

    Args:
        dsn: of the store.
        incarnation: of this process start.
        lease: seconds for which one heartbeat lets us write.
        period: seconds between heartbeats.
        clock: gets the database's time from every heartbeat.
        kinds: what this worker can run.
        report: called in the thread for (busy, draining, health); must not block.
    """

    def __init__(
        self,
        dsn: str,
        incarnation: uuid.UUID,
        clock: Clock,
        *,
        lease: float,
        period: float,
        version: str,
        kinds: Sequence[str],
        slots: int,
        report: Callable[[], tuple[int, bool, dict[str, Any]]],
    ) -> None:
        """See the class."""
        self.incarnation = incarnation
        self.fenced = threading.Event()
        self.last_beat_at = 0.0  # boottime of the last heartbeat that was accepted
        self._dsn, self._clock, self._lease, self._period = dsn, clock, lease, period
        self._row = (socket.gethostname(), os.getpid(), version, PROTOCOL, list(kinds), slots)
        self._report = report
        self._tick_at = clock.boottime()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._failed: BaseException | None = None
        self._num = 0
        self._locked = False
        self._sql = sql.load("liveness")
        self._thread = threading.Thread(target=self._main, name="outlive-heartbeat", daemon=True)

    @property
    def covered(self) -> float:
        """Seconds for which the last heartbeat still covers us (by CLOCK_BOOTTIME: a sleep of the machine counts)."""
        return self.last_beat_at + self._lease - self._clock.boottime()

    async def run(self, *, task_status: Any = None) -> None:
        """Beat until cancelled. Raises `Fenced` when declared dead, or what made the start fail."""
        self._thread.start()
        try:
            while not self._ready.is_set():
                await self._pulse(0.005)
            if task_status is not None:
                task_status.started()
            while True:
                await self._pulse(self._lease / 20)
        finally:
            self._stop.set()
            with anyio.move_on_after(END, shield=True):
                while self._thread.is_alive():  # noqa: ASYNC110  # a thread tells no event loop
                    await asyncio.sleep(0.005)

    async def _pulse(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._tick_at = self._clock.boottime()
        if self._failed is not None:
            raise self._failed
        if self.fenced.is_set():
            raise Fenced(self.incarnation)

    @property
    def loop_lag(self) -> float:
        """Seconds since the event loop last ticked, beyond its pace."""
        return max(0.0, self._clock.boottime() - self._tick_at - self._lease / 20)

    def _main(self) -> None:
        try:
            asyncio.run(self._beat())
        except Exception as error:  # noqa: BLE001  # reason: handed to the event loop, which raises it
            self._failed = error

    async def _beat(self) -> None:
        connection = await self._first()
        self._ready.set()
        pause = self._period
        while not self._stop.is_set() and not self.fenced.is_set():
            await asyncio.to_thread(self._stop.wait, pause)
            pause = self._period
            if self._clock.boottime() - self._tick_at > self._lease / 3:
                continue  # the event loop stands still: let the lease run out
            try:
                await self._renew(connection)
            except database.TRANSIENT as error:
                _log.warning("heartbeat lost its connection", error=repr(error))
                connection.terminate()
                connection = await self._reopen(connection)
                pause = 0.0  # late already
        await self._end(connection)

    async def _first(self) -> Any:
        """Register and beat once; a heartbeat that is restarted in an outage waits for its end."""
        while True:
            try:
                connection = await self._open(register=True)
                await self._renew(connection)
            except database.TRANSIENT as error:
                if self._stop.is_set():
                    raise
                _log.warning("heartbeat waits for Postgres", error=repr(error))
                await asyncio.to_thread(self._stop.wait, self._period / 4)
            else:
                return connection

    async def _open(self, *, register: bool) -> Any:
        connection = await database.connect(self._dsn, application_name=f"outlive:{self.incarnation}")
        if register:
            num = await connection.fetchval(self._sql["register"], self.incarnation, self._lease, *self._row)
            if num is None:
                raise Fenced(self.incarnation)
            self._num = num
        self._locked = False
        await self._lock(connection)
        return connection

    async def _lock(self, connection: Any) -> None:
        """Take the lock; never wait for it: a session that the server still takes for alive may hold it for a while."""
        if await connection.fetchval(self._sql["lock"], LOCK_CLASS, self._num):
            await connection.execute(self._sql["locked"], self.incarnation)
            self._locked = True

    async def _reopen(self, connection: Any) -> Any:
        try:
            return await self._open(register=False)
        except database.TRANSIENT:
            await asyncio.sleep(self._period / 4)
            return connection

    async def _renew(self, connection: Any) -> None:
        busy, draining, health = self._report()
        sent = self._clock.boottime()
        row = await connection.fetchrow(
            self._sql["beat"],
            self.incarnation,
            self._lease,
            busy,
            draining,
            json.dumps(health),
            timeout=self._lease / 2,
        )
        if row is None:
            self.fenced.set()
            return
        self._clock.observe(row["now"], sent, self._clock.boottime())
        self.last_beat_at = sent
        if not self._locked:
            await self._lock(connection)

    async def _end(self, connection: Any) -> None:
        try:
            await connection.execute(self._sql["retire"], self.incarnation, timeout=1)
            await connection.close(timeout=1)
        except (*database.TRANSIENT, asyncpg.PostgresError):
            connection.terminate()


class Fenced(Exception):  # reason: the field's word
    """This worker was declared dead while it lived (frozen, or cut off from Postgres for a whole lease).

    Its tasks run elsewhere. It can write nothing any more; start a new process.
    """

    def __init__(self, incarnation: uuid.UUID) -> None:
        """Name the incarnation."""
        super().__init__(f"worker {incarnation} was fenced: its lease ran out and its tasks were taken over")


class Coroner:
    """Finds dead workers.

    Counts an expired lease only after having reached the database for a whole lease without a pause: when the database
    or the whole machine stood still, nobody could renew anything, and the others get their time to. Who was declared
    dead, or has no lease, declares nobody dead.
    """

    def __init__(self, pool: Any, incarnation: uuid.UUID, *, lease: float) -> None:
        """Watch on behalf of one living worker."""
        self._pool = pool
        self._incarnation = incarnation
        self._lease = lease
        self._sql = sql.load("liveness")
        self._reached: float | None = None  # boottime of the last answer
        self._reached_since = 0.0

    async def dead(self) -> dict[uuid.UUID, str]:
        """Return incarnations that may never write again, with the reason; they are fenced before this returns."""
        try:
            patient = await self._patient()
            rows = await self._pool.fetch(self._sql["dead"], self._incarnation, LOCK_CLASS, patient)
            if not self._reaches():
                return {}
            found = {row["incarnation"]: row["reason"] for row in rows}
            fenced = await self._pool.fetch(self._sql["fence"], self._incarnation, list(found)) if found else ()
        except database.TRANSIENT:
            self._reached = None
            raise
        return {row["incarnation"]: found[row["incarnation"]] for row in fenced}

    async def bury(self, incarnations: Sequence[uuid.UUID]) -> None:
        """Remove the rows of dead workers that own nothing any more."""
        await self._pool.execute(self._sql["bury"], list(incarnations))

    async def _patient(self) -> bool:
        up = float(await self._pool.fetchval(self._sql["started"]))
        self._reaches()
        return min(up, boottime() - self._reached_since) > self._lease

    def _reaches(self) -> bool:
        """Note an answer of the database. False when it came too long after the one before."""
        now = boottime()
        steady = self._reached is not None and now - self._reached < self._lease / 3
        self._reached, self._reached_since = now, self._reached_since if steady else now
        return steady
