"""Chaos on purpose: a worker started with ``--chaos`` lets itself and its actors be killed over NATS.

A request on ``{prefix}.{tenant}.chaos.kill`` reaches every such worker; the one it names obeys.
"""

import os
import signal
from typing import Final

import anyio
import anyio.abc
import msgspec
from nats.aio.msg import Msg

from outlive.actors.worker import Worker
from outlive.infra.bus import Bus

KILL: Final = "kill"
"""The verb."""


class Kill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be killed: the worker with this incarnation, or with `task_id` only its actor of that task."""

    incarnation: str
    task_id: str | None = None


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. `ok` is false when the worker does not hold the task; `tasks` is how many it held."""

    ok: bool
    incarnation: str
    pid: int
    tasks: int
    message: str


class Chaos:
    """Serves kills for one worker, on a connection of its own."""

    def __init__(self, worker: Worker) -> None:
        """Serve for a worker that runs."""
        self._worker = worker
        self._incarnation = str(worker.incarnation)

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        async with Bus.of(self._worker.settings, name="outlive chaos") as self._bus:
            await self._bus.subscribe(self._worker.subjects.chaos("*", KILL), self._receive)
            task_status.started()
            await anyio.sleep_forever()

    async def _receive(self, message: Msg) -> None:
        try:
            kill = msgspec.json.decode(message.data, type=Kill)
        except msgspec.DecodeError:
            return
        if kill.incarnation != self._incarnation:
            return
        if kill.task_id is not None:
            tenant = message.subject.split(".")[1]
            await self._reply(message, self._kill_actor(tenant, kill.task_id))
            return
        await self._reply(message, self._killed(ok=True, text=f"worker {os.getpid()} was killed (SIGKILL)"))
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_actor(self, tenant: str, task_id: str) -> Killed:
        supervisor = self._worker.supervisor
        actor = supervisor.actors.get((tenant, task_id)) if supervisor else None
        if actor is None:
            return self._killed(ok=False, text=f"worker {os.getpid()} has no actor of task {task_id} in memory")
        actor.kill()
        return self._killed(ok=True, text=f"the actor of task {task_id} in worker {os.getpid()} was killed")

    def _killed(self, *, ok: bool, text: str) -> Killed:
        supervisor = self._worker.supervisor
        tasks = len(supervisor.actors) if supervisor else 0
        return Killed(ok=ok, incarnation=self._incarnation, pid=os.getpid(), tasks=tasks, message=text)

    async def _reply(self, message: Msg, reply: Killed) -> None:
        if message.reply:
            await self._bus.publish(message.reply, msgspec.json.encode(reply))
            await self._bus.nc.flush()
