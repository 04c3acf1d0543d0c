"""One embedded server as a child process that dies with us, keeps its port, and never runs twice on one folder."""

import asyncio
import ctypes
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

import anyio
from anyio import to_thread

from outlive.infra.embedded.binaries import User

Report = Callable[[str], None]
"""Is told in a few words what takes time."""

_PORTS: Final = range(20000, 32768)
"""Below the ports that Linux gives to outgoing connections: a client that dials the port of a stopped server could
otherwise be given that very port, and connect to itself."""
_SET_PARENT_DEATH_SIGNAL: Final = 1
_START: Final = 60.0
_STOP: Final = 15.0
_LOOK: Final = 0.01


class ServerFailed(RuntimeError):
    """An embedded server did not start; the message ends with the last lines of its log.

    Causes: data of another major version, no space, a folder of another user, a port that was taken meanwhile.
    """


class Server(ABC):
    """A server over one folder. `start`, `stop` and `kill` may be repeated; the port and the data stay."""

    name: ClassVar[str]
    quit_signal: ClassVar[signal.Signals]

    def __init__(self, folder: Path, *, log: Path, user: User | None = None) -> None:
        """Describe a server that runs as ``user`` (None: as we do)."""
        self.folder = folder
        self.log = log
        self.port = 0
        """Kept if it is free at the first start, else chosen then."""
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @abstractmethod
    def _prepare(self, report: Report) -> None:
        """Make the folder ready for its first start; runs in a worker thread."""

    def _home(self) -> Path:
        """Return the current folder of the server."""
        return self.folder

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line."""

    @abstractmethod
    async def _answers(self) -> bool:
        """Tell whether it serves."""

    async def start(self, report: Report = lambda _: None) -> None:
        """Start and wait until it serves; a former server of this folder is waited for first.

        Raises:
            ServerFailed: it ended or did not serve in time.
        """
        if self.pid:
            return
        self.kill()  # what is left of one that ended by itself
        await to_thread.run_sync(self._prepare, report)
        with anyio.move_on_after(_START):
            lock = await self._wait_for_folder()
            if not self._process and not _is_free(self.port):
                self.port = free_port()
            report(f"starting {self.name}")
            with anyio.CancelScope(shield=True):  # what was started is never forgotten
                self._process = await asyncio.wrap_future(_starter(os.getpid()).submit(self._spawn, lock))
            if sys.platform != "linux":
                self._guard = _guard(self._process.pid, self.quit_signal)
            while self.pid:
                if await self._answers():
                    return
                await anyio.sleep(_LOOK)
        await self.stop()
        raise ServerFailed(f"{self.name} did not start. {self.log} ends with:\n{await to_thread.run_sync(self._tail)}")

    async def stop(self) -> None:
        """End the server in good order; after 15 s by force (both servers recover)."""
        if self._process:
            self._process.send_signal(self.quit_signal)
        with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP):
            await _until(lambda: not self.pid)
        self.kill()

    async def restart(self, report: Report = lambda _: None) -> None:
        """Crash and come back."""
        self.kill()
        await self.start(report)

    def kill(self) -> None:
        """SIGKILL, as a crash would; `start` brings it back."""
        for process in (self._guard, self._process):
            if process:
                process.kill()
                process.wait()
        if self._guard and self._guard.stdin:
            self._guard.stdin.close()

    async def _wait_for_folder(self) -> int:
        # The lock is inherited by the server and its children: it is free when the last of them is gone.
        lock = os.open(self.folder / "running", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            await _until(lambda: _locked(lock))
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _spawn(self, lock: int) -> "subprocess.Popen[bytes]":
        user = self._user
        try:
            with self.log.open("ab") as log:
                return subprocess.Popen(
                    self._command(), cwd=self._home(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    start_new_session=True,  # the terminal's Ctrl-C is not for it
                    user=user.uid if user else None, group=user.gid if user else None,
                    extra_groups=[] if user else None,
                    pass_fds=[lock],
                    preexec_fn=_die_with(os.getpid(), self.quit_signal),  # noqa: PLW1509  # one call into libc
                )  # fmt: skip
        finally:
            os.close(lock)

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:]) if self.log.exists() else ""


_libc = ctypes.CDLL(None)


@cache
def _starter(_pid: int) -> ThreadPoolExecutor:
    """Return the one thread of this process that starts servers and lives as long as the process does.

    The kernel's parent-death signal belongs to the thread that started the child: a helper thread that ends would take
    the server with it, and starting one on the event loop's thread would block the loop.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="outlive servers")


def _die_with(parent: int, quit_signal: signal.Signals) -> Callable[[], None]:
    # Runs in the child after the change of user, which would clear the signal.
    def prepare() -> None:
        if sys.platform == "linux":
            _libc.prctl(_SET_PARENT_DEATH_SIGNAL, int(quit_signal), 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

    return prepare


def _guard(pid: int, quit_signal: signal.Signals) -> "subprocess.Popen[bytes]":
    """Where no parent-death signal exists, a shell waits for the end of a pipe that only we hold open."""
    script = 'read -r line; kill -s "$2" "$1"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "guard", str(pid), quit_signal.name.removeprefix("SIG")],
        stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # neither a lock nor the end of a process has an event on every system
        await anyio.sleep(_LOOK)


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    if not port:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    return next(port for port in iter(lambda: random.choice(_PORTS), None) if _is_free(port))
