"""The demo's workers: processes of their own, which end with the demo whatever happens to it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import anyio

from outlive.actors.audit import mail
from outlive.infra.embedded import Live
from outlive.protocol.errors import OutliveError

APP: Final = "outlive.actors.audit:app"
_COMMAND: Final = (sys.executable, "-P", "-m", "outlive", "worker", APP)
_KEPT: Final = frozenset({mail.SMTP, mail.IMAP})
_START: Final = 60.0
_STOP: Final = 10.0
_SAID: Final = 12


class WorkerEnded(OutliveError):
    """A worker did not come to serve; the message ends with what it said."""


class WorkerProcess:
    """One worker process and its log."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, ready: int) -> None:
        """Wrap a process that was started; ``ready`` is the end of a pipe on which it tells that it serves."""
        self._process = process
        self._log = log
        self._ready = ready
        self.pid: Final = process.pid

    @property
    def killed(self) -> bool:
        """It ended by SIGKILL, says the operating system."""
        return self._process.returncode == -signal.SIGKILL

    async def serves(self) -> None:
        """Wait until it serves; raise `WorkerEnded` when it ends instead, or takes longer than a minute."""
        with anyio.move_on_after(_START):
            await anyio.wait_readable(self._ready)
            if os.read(self._ready, 16):
                return
        said = (await anyio.Path(self._log).read_text(errors="replace")).splitlines()[-_SAID:]
        raise WorkerEnded("\n".join([f"worker {self.pid} does not serve. {self._log} ends with:", *said]))

    async def kill(self) -> None:
        """End it as a crash would, and wait until it is gone."""
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Ask it to end; after 10 s end it by force."""
        os.close(self._ready)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with anyio.move_on_after(_STOP):
            await self._process.wait()
        if self._process.returncode is None:
            await self.kill()


@contextlib.asynccontextmanager
async def crew(count: int, live: Live, folder: Path) -> AsyncGenerator[list[WorkerProcess]]:
    """Yield workers that serve the audit on a pair of servers; their logs lie in ``folder``. They end with the block.

    Raises:
        WorkerEnded: one of them does not come to serve.
    """
    workers: list[WorkerProcess] = []
    try:
        while len(workers) < count:
            workers.append(await _start(live, folder / f"worker-{len(workers) + 1}.log"))
        for worker in workers:
            await worker.serves()
        yield workers
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for worker in workers:
                    group.start_soon(worker.stop)


async def _start(live: Live, log: Path) -> WorkerProcess:
    settings = {"OUTLIVE_NATS_URL": live.nats_url, "OUTLIVE_POSTGRES_DSN": live.postgres_dsn}
    others = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_") or name in _KEPT}
    ours, theirs = os.pipe()
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(*_COMMAND, "--crew", str(os.getpid()), str(theirs)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=others | settings,
            pass_fds=[theirs],
            start_new_session=True,  # the terminal's Ctrl-C is for the demo, which then stops them in order
        )
        os.close(theirs)
        return WorkerProcess(process, log, ours)
