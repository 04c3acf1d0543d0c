"""The worker processes of a soak: started with ``--chaos``, started again when they end, killed at the end."""

from collections.abc import Mapping
from typing import Final

import anyio

from outlive.actors.chaoskit.processes import WorkerEnded, WorkerProcess

_PAUSE: Final = 1.0


class Crew:
    """So many workers of an app.

    Args:
        app: ``module:name``.
        count: how many.
        environment: variables that name the servers.
    """

    def __init__(self, app: str, count: int, environment: Mapping[str, str]) -> None:
        self.deaths = 0
        """Ends of workers, however they came."""
        self.workers: Final = [WorkerProcess(app, environment, chaos=True) for _ in range(count)]

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep them running until cancelled."""
        try:
            for worker in self.workers:
                await worker.start()
                await worker.ready()
            task_status.started()
            async with anyio.create_task_group() as group:
                for worker in self.workers:
                    group.start_soon(self._keep, worker)
        finally:
            for worker in self.workers:
                await worker.close()

    async def _keep(self, worker: WorkerProcess) -> None:
        while True:
            await worker.ended()
            self.deaths += 1
            await worker.start()
            try:
                await worker.ready()
            except WorkerEnded:
                if worker.alive:  # it is frozen, or its links are cut: its own patience decides
                    continue
                await anyio.sleep(_PAUSE)
