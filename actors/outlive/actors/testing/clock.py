"""Virtual time for tests: an hour's sleep passes when you say so.

::

    async with virtual_time(server.postgres_dsn) as time:
        handle = await client.submit(reminder, days=30)
        await time.advance(30 * 86_400)
        assert await handle.result() == "sent"

Everything durable that waits (timers, retry waits, signals' time limits, approvals) waits by ``outlive.clock()``, a
function in the database; it is replaced by one that adds an offset, for all workers on that database. Workers look
at least once per ``poll`` for what is due, so nothing has to be told; a waiting actor that is still in memory counts
in real seconds, so set ``linger=0``.

Time jumps forward only, and leases jump along: the leases of workers and of the ingester are moved in the transaction
that moves the clock, while nobody can renew one, so that no worker is taken for dead. Durations (a tool's timeout, the
heartbeat's pace) are real.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final

from outlive.infra import database, sql
from outlive.infra.clock import Clock, boottime

_SQL: Final = sql.load("virtual_time", "outlive.actors")


class VirtualTime:
    """Moves a database's clock; made by `virtual_time`."""

    def __init__(self, connection: Any, clocks: tuple[Clock, ...]) -> None:
        """Use one connection, and keep these Python clocks in step."""
        self._connection = connection
        self._clocks = clocks

    async def now(self) -> datetime:
        """Return the virtual time."""
        now: datetime = await self._connection.fetchval(_SQL["now"])
        return now

    async def advance(self, seconds: float) -> datetime:
        """Let `seconds` pass at once; return the new time.

        Raises:
            ValueError: `seconds` is negative: stored times would lie in the future.
        """
        if seconds < 0:
            raise ValueError(f"time cannot go back ({seconds} s)")
        async with self._connection.transaction():
            await self._connection.execute(_SQL["exclude"])
            await self._jump(seconds)
        return await self.observe()

    async def observe(self) -> datetime:
        """Bring the Python clocks to the database's time."""
        now = await self.now()
        read = boottime()
        for clock in self._clocks:
            clock.observe(now, read, read)
        return now

    async def install(self) -> None:
        """Replace ``outlive.clock()``; nothing jumps yet."""
        async with self._connection.transaction():
            for name in ("exclude", "table", "start", "install"):
                await self._connection.execute(_SQL[name])

    async def restore(self) -> None:
        """Put the true clock back; leases lose what time had been moved."""
        async with self._connection.transaction():
            await self._connection.execute(_SQL["exclude"])
            shift = await self._connection.fetchval(_SQL["shift"])
            await self._connection.execute(_SQL["restore"])
            await self._jump(-shift)
        await self.observe()

    async def _jump(self, seconds: float) -> None:
        for name in ("advance", "move_workers", "move_cursors"):
            await self._connection.execute(_SQL[name], seconds)


@asynccontextmanager
async def virtual_time(dsn: str, *clocks: Clock) -> AsyncGenerator[VirtualTime]:
    """Make the time of one database movable until the end of the block; `clocks` are Python clocks of this process.

    Workers in other processes take the new time in with their next heartbeat.
    """
    connection = await database.connect(dsn, application_name="outlive virtual time")
    try:
        time = VirtualTime(connection, clocks)
        await time.install()
        try:
            yield time
        finally:
            await time.restore()
    finally:
        await connection.close(timeout=10)
