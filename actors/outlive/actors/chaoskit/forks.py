"""Worker processes for the explorer: forked from one that has imported everything, killed, frozen, and listened to."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from outlive.actors.chaoskit.testimony import Arm, Armed, Failed, Order, Ready, Said, Serve, line, read_said
from outlive.protocol.errors import OutliveError

START: Final = 60.0
"""Seconds within which a process is there, serves, or is armed."""

_LINE: Final = 1 << 24


class ForkFailed(OutliveError):
    """The app could not be imported, or a worker could not serve; the message ends with what it said."""


class Fork:
    """One process. `gone` is set when it has ended, however that was."""

    def __init__(self, pid: int, writer: asyncio.StreamWriter) -> None:
        """Made by `Forks`."""
        self.pid = pid
        self.gone = asyncio.Event()
        self.said: list[Said] = []
        self.news = asyncio.Event()
        self.why = ""
        self._writer = writer
        self._ready = asyncio.Event()
        self._armed = asyncio.Event()

    async def serve(self, environment: Mapping[str, str]) -> None:
        """Become a worker. Raises `ForkFailed`."""
        self._order(Serve(dict(environment)))
        await self._until(self._ready)

    async def arm(self, failpoints: str = "") -> None:
        """Arm failpoints; what it says is heard anew. Raises `ForkFailed`."""
        self._armed.clear()
        self._order(Arm(failpoints))
        await self._until(self._armed)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def cont(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def hear(self, said: Said) -> None:
        """Take what it said."""
        match said:
            case Ready():
                self._ready.set()
            case Armed():
                self.said = []
                self._armed.set()
            case Failed(why):
                self.why = why
            case _:
                self.said.append(said)
        self.news.set()

    def _order(self, order: Order) -> None:
        self._writer.write(line(order))

    async def _until(self, event: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(START):
                await first(event, self.gone)
        except TimeoutError:
            raise ForkFailed(f"worker {self.pid} did not answer within {START:g} s") from None
        if not event.is_set():
            raise ForkFailed(f"worker {self.pid} ended too early: {self.why or 'it said nothing'}")

    def _signal(self, number: signal.Signals) -> None:
        if not self.gone.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


async def first(*events: asyncio.Event) -> None:
    """Wait until one of these is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


class Forks:
    """Forks workers of one app: ``async with Forks("todo:app") as forks``.

    Args:
        app: ``module:name``.
        path: folders to import from, besides this process's.
        environment: variables that the app wants.
        spare: processes that are kept waiting.
    """

    def __init__(
        self, app: str, *, path: Sequence[str] = (), environment: Mapping[str, str] | None = None, spare: int = 2
    ) -> None:
        """See the class."""
        self._app = app
        self._path = [*path, *filter(None, sys.path)]
        self._extra = dict(environment or {})
        self._spare = spare
        self._waiting: asyncio.Queue[Fork] = asyncio.Queue()
        self._alive: set[Fork] = set()
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    @property
    def log(self) -> str:
        """The end of what all of them wrote."""
        return self._log.read_text(errors="replace")[-4000:]

    async def take(self) -> Fork:
        """Return a process that waits for its orders. Raises `ForkFailed`."""
        self._breed(1)
        try:
            async with asyncio.timeout(START):
                return await self._waiting.get()
        except TimeoutError:
            raise ForkFailed(f"no worker process came up within {START:g} s:\n{self.log}") from None

    async def _start(self) -> None:
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="outlive-forks-")))
        self._log = folder / "log"
        server = await asyncio.start_unix_server(self._came, folder / "socket", limit=_LINE)
        self._stack.push_async_callback(self._close, server)
        others = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
        environment = {**others, **self._extra, "PYTHONPATH": os.pathsep.join(self._path)}
        command = [sys.executable, "-m", "outlive.actors.chaoskit.fork_main", self._app, str(folder / "socket")]
        with self._log.open("ab") as log:
            self._mother = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
            )
        self._stack.push_async_callback(self._end)
        assert self._mother.stdout is not None
        if await self._mother.stdout.readline() != b"ready\n":
            raise ForkFailed(f"{self._app} cannot be served:\n{self.log}")
        self._breed(self._spare)

    def _breed(self, count: int) -> None:
        assert self._mother.stdin is not None
        self._mother.stdin.write(b"f" * count)

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fork = Fork(int(await reader.readline()), writer)
        self._alive.add(fork)
        self._waiting.put_nowait(fork)
        try:
            async for told in reader:
                fork.hear(read_said(told))
        except ConnectionError:
            pass
        finally:
            fork.gone.set()
            fork.news.set()
            self._alive.discard(fork)
            writer.close()

    async def _end(self) -> None:
        for fork in self._alive:
            fork.kill()
        if self._mother.returncode is None:
            self._mother.kill()
        await self._mother.wait()

    async def _close(self, server: asyncio.Server) -> None:
        server.close()
        for fork in list(self._alive):
            await fork.gone.wait()
