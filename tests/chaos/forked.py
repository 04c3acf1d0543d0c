"""Worker processes that start in a moment: forked from one process per test session that has imported everything.

The imports of a worker take half a second of processor time, with models a whole one, and the tests start hundreds.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Final

from tests.chaos import worker_main

_IMPORTED: Final = (
    "outlive.actors.agents.existing",
    "outlive.actors.testing",
    "outlive.actors.worker",
    "tests.chaos.worker_main",
)

_context: Final = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(_IMPORTED))


class Forked:
    """A process, with what `asyncio.subprocess.Process` has."""

    def __init__(self, process: ForkServerProcess) -> None:
        """Wrap one that was started."""
        assert process.pid is not None
        self.pid: Final[int] = process.pid
        self._process = process
        self._ended = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(process.sentinel, self._end)

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that ended it; None: it runs."""
        return self._process.exitcode

    def send_signal(self, number: int, /) -> None:
        """Send it a signal."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end."""
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _end(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        self._ended.set()


def start(app: str, ready: int, log: Path, environment: Mapping[str, str]) -> Forked:
    """Start a worker of an app that has just this environment, and writes to the descriptor `ready` when it serves."""
    told = Connection(os.dup(ready), readable=False)
    process = _context.Process(target=_serve, args=(app, told, str(log), dict(environment)), daemon=True)
    process.start()
    told.close()
    return Forked(process)


def _serve(app: str, told: Connection, log: str, environment: dict[str, str]) -> None:
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ready = os.dup(told.fileno())
    told.close()
    with contextlib.suppress(KeyboardInterrupt):
        worker_main.main(app, ready)
