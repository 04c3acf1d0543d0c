"""The demo's workers: processes of their own, which end with the demo whatever happens to it."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import anyio

from outlive.infra.embedded import Live

APP: Final = "outlive.actors.audit:app"
_COMMAND: Final = (sys.executable, "-P", "-m", "outlive.actors", "worker", APP)
_SET_PARENT_DEATH_SIGNAL: Final = 1
_STOP: Final = 10.0


class WorkerEnded(RuntimeError):
    """A worker ended that nobody killed; the message names its log."""


class WorkerProcess:
    """One worker process and its log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        """Wrap a process that was started."""
        self._process = process
        self._log = log
        self.pid: Final = process.pid

    @property
    def killed(self) -> bool:
        """It ended by SIGKILL, says the operating system."""
        return self._process.returncode == -signal.SIGKILL

    async def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        self._process.kill()
        await self._process.wait()

    def check(self) -> None:
        """Raise `WorkerEnded` if it ended by itself."""
        if self._process.returncode is not None and not self.killed:
            raise WorkerEnded(f"worker {self.pid} ended with {self._process.returncode}; see {self._log}")

    async def stop(self) -> None:
        """Ask it to end; after 10 s end it by force."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with anyio.move_on_after(_STOP):
            await self._process.wait()
        if self._process.returncode is None:
            await self.kill()


@contextlib.asynccontextmanager
async def crew(count: int, live: Live, folder: Path) -> AsyncGenerator[list[WorkerProcess]]:
    """Start workers for the audit on a pair of servers; their logs lie in ``folder``. They end with the block."""
    workers: list[WorkerProcess] = []
    try:
        while len(workers) < count:
            workers.append(await _start(live, folder / f"worker-{len(workers) + 1}.log"))
        yield workers
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for worker in workers:
                    group.start_soon(worker.stop)


async def _start(live: Live, log: Path) -> WorkerProcess:
    settings = {"OUTLIVE_NATS_URL": live.nats_url, "OUTLIVE_POSTGRES_DSN": live.postgres_dsn}
    others = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=others | settings,
            start_new_session=True,  # the terminal's Ctrl-C is for the demo, which then stops them in order
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    return WorkerProcess(process, log)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
