"""One Postgres and one NATS for a state folder, started by one process and shared with all others on the machine."""

import fcntl
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio import to_thread

from outlive.infra.embedded.nats import NatsServer
from outlive.infra.embedded.postgres import PostgresServer
from outlive.infra.embedded.server import Report, ServerFailed
from outlive.infra.settings import Settings

_WAIT: Final = 90.0
_LOOK: Final = 0.05
_WATCH: Final = 0.5


class PairRunning(RuntimeError):
    """Another process (or this one) runs the servers of this state folder; `pair` would share them."""


class NoServers(RuntimeError):
    """There is neither a URL nor a live pair of servers; the message says how to get either."""


class Live(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running pair is to be reached, as ``pair.json`` of the state folder tells."""

    nats_url: str
    postgres_dsn: str
    pid: int
    """Of the process that runs the servers and takes them with it when it ends."""
    sync_always: bool = False
    """NATS syncs each message to the disk before it acknowledges it."""


def find_live(state_dir: Path) -> Live | None:
    """Return the running pair of a state folder, or None.

    The owner keeps a lock on the file while its servers run, so a file left by a killed process is no pair.
    """
    try:
        with (state_dir / "pair.json").open("rb") as file:
            if _lock(file.fileno(), fcntl.LOCK_SH):
                return None
            return msgspec.json.decode(file.read(), type=Live)
    except FileNotFoundError:
        return None


async def ended(state_dir: Path) -> None:
    """Return when the running pair of a state folder has ended (looks twice a second)."""
    while await to_thread.run_sync(find_live, state_dir):  # noqa: ASYNC110  # another process ends it
        await anyio.sleep(_WATCH)


def locate(settings: Settings) -> Settings:
    """Fill in the URLs that are not set from the live pair of the state folder.

    Raises:
        NoServers: a URL is missing and no pair runs.
    """
    if settings.nats_url and settings.postgres_dsn:
        return settings
    live = find_live(settings.state_dir)
    if live is None:
        raise NoServers(
            f"no servers: nothing runs in {settings.state_dir}. Start them in another terminal with: outlive up; "
            "or set OUTLIVE_NATS_URL and OUTLIVE_POSTGRES_DSN"
        )
    return msgspec.structs.replace(
        settings,
        nats_url=settings.nats_url or live.nats_url,
        postgres_dsn=settings.postgres_dsn or live.postgres_dsn,
    )


class Pair:
    """The two servers of a state folder; an async context manager that starts and stops them.

    `postgres` and `nats` have ``kill()``, ``stop()``, ``await start()`` and ``pid`` of their own: ports, secrets and
    data stay the same.
    """

    def __init__(self, state_dir: Path, *, sync_always: bool = False, on_progress: Report = lambda _: None) -> None:
        """Describe a pair; nothing is started.

        Args:
            state_dir: everything is kept here; made if missing.
            sync_always: NATS acknowledges only what is on the disk.
            on_progress: is told in a few words what takes time.
        """
        self.state_dir = state_dir.absolute()
        self._report = on_progress
        self._sync_always = sync_always
        self._locks: list[int] = []
        self.postgres: Final = PostgresServer(self.state_dir / "postgres", log=self.state_dir / "postgres.log")
        self.nats: Final = NatsServer(self.state_dir / "nats", log=self.state_dir / "nats.log", sync_always=sync_always)

    @property
    def nats_url(self) -> str:
        """Where NATS clients connect, token included."""
        return self.nats.url

    @property
    def postgres_dsn(self) -> str:
        """Where Postgres clients connect, password included."""
        return self.postgres.dsn

    async def start(self) -> None:
        """Start both servers and make them known to other processes.

        Raises:
            PairRunning: the state folder has a running pair.
            ServersMissing, ServerFailed: see there.
        """
        await to_thread.run_sync(self._take)
        try:
            async with anyio.create_task_group() as both:
                both.start_soon(self.postgres.start, self._report)
                both.start_soon(self.nats.start, self._report)
            await to_thread.run_sync(self._publish)
        except BaseException as error:
            await self.stop()
            if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                raise error.exceptions[0] from None
            raise

    async def stop(self) -> None:
        """Stop Postgres, then NATS, and give the state folder free."""
        with anyio.CancelScope(shield=True):
            await self.postgres.stop()
            await self.nats.stop()
        while self._locks:
            os.close(self._locks.pop())

    async def supervise(self) -> None:
        """Bring a server back that ended without being asked to; runs until it is cancelled."""
        while True:
            await anyio.sleep(_WATCH)
            for server in (self.postgres, self.nats):
                if not server.pid:
                    self._report(f"{server.name} ended by itself")
                    await server.start(self._report)

    async def __aenter__(self) -> Self:
        """Start the pair."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the pair."""
        await self.stop()

    def _take(self) -> None:
        # Root's Postgres runs as another user, who may pass through but see nothing.
        mode = 0o711 if os.geteuid() == 0 else 0o700
        for folder in (self.state_dir, self.postgres.folder, self.nats.folder):
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
        (self.state_dir / ".gitignore").write_text("*\n")
        lock = os.open(self.state_dir / "lock", os.O_CREAT | os.O_RDWR, 0o600)
        if not _lock(lock, fcntl.LOCK_EX):
            os.close(lock)
            raise PairRunning(f"the servers of {self.state_dir} already run")
        self._locks.append(lock)
        self._readdress()

    def _readdress(self) -> None:
        # The same addresses as last time, so that clients of the former pair find the new one.
        try:
            former = msgspec.json.decode((self.state_dir / "pair.json").read_bytes(), type=Live)
        except (FileNotFoundError, msgspec.DecodeError):
            return
        nats = urlsplit(former.nats_url)
        self.nats.port, self.nats.token = nats.port or 0, nats.username or self.nats.token
        self.postgres.port = urlsplit(former.postgres_dsn).port or 0

    def _publish(self) -> None:
        # Locked before it gets its name, so whoever finds it locked can believe what it says.
        live = Live(
            nats_url=self.nats_url, postgres_dsn=self.postgres_dsn, pid=os.getpid(), sync_always=self._sync_always
        )
        fresh = self.state_dir / "pair.json.new"
        fresh.unlink(missing_ok=True)
        file = os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        self._locks.append(file)
        _lock(file, fcntl.LOCK_EX)
        os.write(file, msgspec.json.encode(live))
        fresh.rename(self.state_dir / "pair.json")


@asynccontextmanager
async def pair(
    state_dir: Path, *, sync_always: bool = False, on_progress: Report = lambda _: None
) -> AsyncGenerator[Live]:
    """Yield a pair of servers for a state folder: the running one (left alone at the end), else a new one (stopped).

    Raises:
        ServersMissing, ServerFailed: see there.
    """
    servers = Pair(state_dir, sync_always=sync_always, on_progress=on_progress)
    live = await _start_or_find(servers)
    try:
        yield live
    finally:
        await servers.stop()


async def _start_or_find(servers: Pair) -> Live:
    with anyio.move_on_after(_WAIT):
        while True:
            try:
                await servers.start()
            except PairRunning:
                await anyio.sleep(_LOOK)  # it may be starting, or ending
            if live := await to_thread.run_sync(find_live, servers.state_dir):
                return live
    raise ServerFailed(f"another process holds {servers.state_dir}/lock, but its servers did not start in {_WAIT:g} s")


def _lock(file: int, kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
