"""A worker in a process of its own, to be killed, frozen and let go on."""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import anyio

from outlive.infra import failpoints as points
from outlive.protocol.errors import OutliveError

READY: Final = 30.0
"""Seconds within which a worker serves."""
_SAID: Final = 20_000


class WorkerEnded(OutliveError):
    """A worker ended, or did not serve within half a minute; the message ends with what it said."""


class Process(Protocol):
    """What `asyncio.subprocess.Process` has and is used here."""

    @property
    def pid(self) -> int: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, signal: int, /) -> None: ...
    async def wait(self) -> int: ...


class WorkerProcess:
    """A worker of an app; `async with` starts it, waits until it serves, and kills it.

    Args:
        app: ``module:name``, importable from `cwd`.
        environment: variables besides those of this process, of whose ``OUTLIVE_*`` it gets none.
        failpoints: as in ``OUTLIVE_FAILPOINTS``, for its first process; one that is started again has none.
        cwd: where it runs; None is here.
        chaos: `outlive chaos` may break it.
    """

    def __init__(
        self,
        app: str,
        environment: Mapping[str, str],
        *,
        failpoints: str = "",
        cwd: Path | None = None,
        chaos: bool = False,
    ) -> None:
        self._app = app
        self._chaos = ["--chaos"] if chaos else []
        self._failpoints = failpoints
        self._cwd = cwd
        others = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
        self._environment = {**others, **environment}
        self._folder = tempfile.TemporaryDirectory(prefix="outlive-worker-")
        self._log = Path(self._folder.name, "log")
        self._last_words = ""
        self._ready = -1
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def pid(self) -> int:
        """The process id of its latest process."""
        return self._started.pid

    @property
    def alive(self) -> bool:
        """Whether it runs (a frozen one does)."""
        return self._process is not None and self._process.returncode is None

    @property
    def killed(self) -> bool:
        """Whether its latest process ended by SIGKILL, says the operating system."""
        return self._process is not None and self._process.returncode == -signal.SIGKILL

    @property
    def log(self) -> str:
        """What all its processes wrote, from the first on; after `close` its end."""
        return self._log.read_text(errors="replace") if self._log.exists() else self._last_words

    async def start(self) -> None:
        """Start a process; from the main thread, whose end it does not outlive."""
        assert not self.alive, "it runs already"
        self._ready, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        armed = {points.VARIABLE: self._failpoints} if self._failpoints else {}
        self._failpoints = ""
        try:
            self._process = await self.spawn(theirs, self._log, {**self._environment, **armed})
        finally:
            os.close(theirs)

    async def spawn(self, ready: int, log: Path, environment: Mapping[str, str]) -> Process:
        """Start a process that appends to `log`, writes to the descriptor `ready` when it serves, and ends with us."""
        worker = ["outlive", "worker", self._app, *self._chaos, "--log-text", "--crew", str(os.getpid()), str(ready)]
        with log.open("ab") as file:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", *worker, cwd=self._cwd, env=environment, pass_fds=[ready],
                stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,  # a terminal's Ctrl-C is for whoever started it
            )  # fmt: skip

    async def ready(self, within: float = READY) -> None:
        """Wait until it serves.

        Raises:
            WorkerEnded: it ended before that, or took longer than `within` seconds.
        """
        served = b""
        try:
            with anyio.move_on_after(within):
                await anyio.wait_readable(self._ready)
                served = os.read(self._ready, 16)
        finally:
            os.close(self._ready)
        if not served:
            raise WorkerEnded(f"worker {self.pid} of {self._app} does not serve. It said:\n{self.log[-_SAID:]}")

    async def restart(self) -> None:
        """Kill it if it lives, start another process, wait until that serves."""
        if self.alive:
            self.kill()
        await self.exited()
        await self.start()
        await self.ready()

    def kill(self) -> None:
        """SIGKILL."""
        self._started.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM: it should drain."""
        self._started.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """SIGSTOP: frozen, its connections stay open."""
        self._started.send_signal(signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT."""
        self._started.send_signal(signal.SIGCONT)

    async def exited(self, within: float = READY) -> int:
        """Wait for its end; its return code (minus the signal's number).

        Raises:
            TimeoutError: it has not ended within so many seconds.
        """
        with anyio.fail_after(within):
            return await self.ended()

    async def ended(self) -> int:
        """Wait for its end, however long it lives; its return code (minus the signal's number)."""
        return await self._started.wait()

    async def close(self) -> None:
        """Kill it if it lives; keep the end of its log alone."""
        with anyio.CancelScope(shield=True):
            if self.alive:
                self.kill()
                await self.exited()
            self._last_words = self.log[-_SAID:]
            self._folder.cleanup()

    @property
    def _started(self) -> Process:
        assert self._process is not None, "not started"
        return self._process
