"""Connections to Postgres: settings, time limits, which errors pass, and a pool that says when it is the bottleneck."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import asyncpg

from outlive.infra.clock import Clock

T = TypeVar("T")
SCHEMA: Final = "outlive_store"

TRANSIENT: Final[tuple[type[Exception], ...]] = (
    OSError,  # refused, reset, name not found, and every TimeoutError
    asyncpg.InterfaceError,  # asyncpg's word for "the connection is gone" (and for its own misuse)
    asyncpg.InternalClientError,  # its word for a server that hung up between two messages
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,  # too many connections, no memory; a full disk until somebody makes room
    asyncpg.QueryCanceledError,  # statement_timeout: the server was slow or frozen
    asyncpg.LockNotAvailableError,
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.ReadOnlySQLTransactionError,  # a standby that is about to take over
)
"""Errors after which the same statement, on a new connection, may well succeed. Its first try may have committed."""

JOURNAL_SETTINGS: Final[Mapping[str, str]] = {
    # Without these the batch statement is planned for huge arrays and becomes quadratic (81 ms against 13, measured).
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""Planner settings of connections that run the journal's and the ingester's set-based statements."""

WORK_SETTINGS: Final[Mapping[str, str]] = {
    # A plan kept from when a table was small scans what has grown meanwhile; planning anew costs under a millisecond.
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",  # a claim reads the first due tasks in order; a bitmap collects and sorts all of them
    "jit": "off",
}
"""Planner settings of a pool (claims, loads, questions): by index, planned for the tables as they are."""

_SETTINGS: Final[Mapping[str, str]] = {
    "search_path": SCHEMA,
    "timezone": "UTC",
    "statement_timeout": "30s",
    "lock_timeout": "10s",
    # A holder that froze inside a transaction would block every take-over of its tasks.
    "idle_in_transaction_session_timeout": "10s",
    # A peer that vanished without a word is noticed after about 10 s on either side.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "10000",
    "client_connection_check_interval": "1s",
}
_CONNECT_TIMEOUT: Final = 10.0
_GOODBYE: Final = 1.0
_AGAIN: Final = 0.2
_COMMAND_TIMEOUT: Final = 35.0
"""Above statement_timeout: it fires only when the server itself no longer answers."""


async def connect(dsn: str, *, application_name: str, journal: bool = False, **settings: str) -> asyncpg.Connection:
    """Open a connection with Outlive's settings (schema ``outlive_store``, time limits, keepalives).

    Args:
        dsn: ``postgresql://user:password@host:port/database``.
        application_name: shown in ``pg_stat_activity``; a worker's connections carry its incarnation.
        journal: with `JOURNAL_SETTINGS`.
        settings: further server settings, for instance ``statement_timeout="600s"``.

    Raises:
        Unreachable, asyncpg.PostgresError: the server cannot be reached, or refuses; see `TRANSIENT`.
    """
    planner = JOURNAL_SETTINGS if journal else {}
    try:
        return await asyncpg.connect(dsn, **_arguments(application_name, {**planner, **settings}))
    except OSError as error:
        raise Unreachable(
            f"no connection to Postgres at {dsn.rpartition('@')[2]}: {error or 'no answer'}. Is the server up, "
            "OUTLIVE_POSTGRES_DSN right?"
        ) from error


def _arguments(application_name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    return {
        "timeout": _CONNECT_TIMEOUT,
        "command_timeout": _COMMAND_TIMEOUT,
        "server_settings": {**_SETTINGS, **settings, "application_name": application_name[:63]},
    }


class Replan:
    """Has a connection plan its generic plans anew while the tables grow: after 8, 16, 32, ... statements.

    A generic plan made for an empty table takes whatever index comes first (a batch of 200 then took 190 ms instead of
    9, measured), and is kept until the next ANALYZE. The size of a table is read when a plan is made.
    """

    __slots__ = ("_at", "_count")

    def __init__(self) -> None:
        """Begin to count."""
        self._count = 0
        self._at = 8

    async def after(self, connection: asyncpg.Connection) -> None:
        """Count one statement; drop the plans when it is time."""
        self._count += 1
        if self._count >= self._at:
            self._at += min(self._at, 4096)
            await connection.execute("discard plans")


async def patiently(act: Callable[[], Awaitable[T]]) -> T:
    """Do something until Postgres answers. What is done must bear being done twice: see `TRANSIENT`."""
    while True:
        try:
            return await act()
        except TRANSIENT:
            await asyncio.sleep(_AGAIN)


async def synchronise(clock: Clock, connection: asyncpg.Connection) -> None:
    """Let the clock observe the database's time (one round trip)."""
    sent = clock.boottime()
    database_time: Any = await connection.fetchval("select outlive.clock()")
    clock.observe(database_time, sent, clock.boottime())


class Unreachable(ConnectionError):
    """Postgres cannot be reached: refused, no such host, or no answer in time. The message names the place."""


class PoolExhausted(TimeoutError):
    """Every connection of the pool stayed in use for the whole wait.

    Causes: more work at once than ``OUTLIVE_POOL_SIZE`` connections serve, or statements that hang (see
    ``outlive doctor``, and ``pg_stat_activity``).
    """


async def _forget(connection: asyncpg.Connection) -> None:
    # Nobody changes a pool connection's session, so the usual reset (a round trip at every release) has nothing to do.
    if connection.is_in_transaction():
        await connection.reset(timeout=_CONNECT_TIMEOUT)


class Pool:
    """A bounded pool of connections; an async context manager.

    A statement's session state (``set``, advisory locks, ``listen``) must not be changed: it is not reset on release.
    """

    def __init__(
        self,
        dsn: str,
        *,
        application_name: str,
        size: int = 10,
        wait: float = 10.0,
        **settings: str,
    ) -> None:
        """Describe a pool of at most ``size`` connections; ``wait`` is the longest an acquire may take, in seconds."""
        self._size = size
        self._wait = wait
        self._pool: asyncpg.Pool = asyncpg.create_pool(
            dsn, min_size=0, max_size=size, reset=_forget, **_arguments(application_name, {**WORK_SETTINGS, **settings})
        )

    async def __aenter__(self) -> Self:
        """Open the pool; connections are made when they are needed."""
        await self._pool
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool: gently after success, at once after an error or when the server does not say goodbye."""
        if error is None:
            with anyio.move_on_after(_GOODBYE, shield=True):
                await self._pool.close()
                return
        self._pool.terminate()

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[asyncpg.Connection]:
        """Borrow a connection.

        Raises:
            PoolExhausted: none became free in time.
            OSError, asyncpg.PostgresError: the server cannot be reached; see `TRANSIENT`.
        """
        connection = await self._borrow()
        try:
            yield connection
        finally:
            await self._pool.release(connection, timeout=_CONNECT_TIMEOUT)

    async def _borrow(self) -> asyncpg.Connection:
        try:
            connection: Any = await self._pool.acquire(timeout=self._wait)
        except TimeoutError as error:
            if self._pool.get_size() < self._size or self._pool.get_idle_size():
                raise TimeoutError(f"Postgres gave no connection within {self._wait:g} s") from error
            raise PoolExhausted(
                f"all {self._size} database connections were in use for {self._wait:g} s: "
                "raise OUTLIVE_POOL_SIZE, or look for statements that hang with: outlive doctor"
            ) from error
        return connection

    async def fetch(self, query: str, *arguments: object) -> Sequence[asyncpg.Record]:
        """Run a statement on a borrowed connection and return its rows."""
        async with self.acquire() as connection:
            rows: Sequence[asyncpg.Record] = await connection.fetch(query, *arguments)
            return rows

    async def fetchrow(self, query: str, *arguments: object) -> asyncpg.Record | None:
        """Run a statement on a borrowed connection and return its first row, or None."""
        async with self.acquire() as connection:
            return await connection.fetchrow(query, *arguments)

    async def fetchval(self, query: str, *arguments: object) -> Any:
        """Run a statement on a borrowed connection and return the first column of its first row, or None."""
        async with self.acquire() as connection:
            return await connection.fetchval(query, *arguments)

    async def execute(self, query: str, *arguments: object) -> str:
        """Run a statement on a borrowed connection and return its command tag, for instance ``UPDATE 3``."""
        async with self.acquire() as connection:
            tag: str = await connection.execute(query, *arguments)
            return tag
