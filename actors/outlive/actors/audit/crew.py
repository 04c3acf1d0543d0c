"""The demo's workers: processes of their own, which end with the demo whatever happens to it."""

import contextlib
import os
from collections.abc import AsyncGenerator
from typing import Final

import anyio

from outlive.actors.audit import mail
from outlive.actors.chaoskit.processes import WorkerProcess
from outlive.infra.embedded import Live

APP: Final = "outlive.actors.audit:app"
_KEPT: Final = (mail.SMTP, mail.IMAP)
_START: Final = 60.0
_STOP: Final = 10.0


@contextlib.asynccontextmanager
async def crew(count: int, live: Live) -> AsyncGenerator[list[WorkerProcess]]:
    """Yield workers that serve the audit on a pair of servers. They end with the block.

    Raises:
        WorkerEnded: one of them does not come to serve within a minute.
    """
    environment = {"OUTLIVE_NATS_URL": live.nats_url, "OUTLIVE_POSTGRES_DSN": live.postgres_dsn}
    environment |= {name: os.environ[name] for name in _KEPT if name in os.environ}
    workers = [WorkerProcess(APP, environment) for _ in range(count)]
    try:
        for worker in workers:
            await worker.start()
        for worker in workers:
            await worker.ready(_START)
        yield workers
    finally:
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                for worker in workers:
                    group.start_soon(_stop, worker)


async def _stop(worker: WorkerProcess) -> None:
    """Ask it to end; after 10 s end it by force."""
    if worker.alive:
        worker.terminate()
        with contextlib.suppress(TimeoutError):
            await worker.exited(_STOP)
    await worker.close()
