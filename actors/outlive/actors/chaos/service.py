"""Chaos on purpose, inside a worker that was started with ``--chaos``: it is told over NATS what to break.

Orders come on a connection of its own that leads past the proxies, so that a worker whose links are cut still hears
that they are mended.
"""

import os
import platform
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import anyio
import anyio.abc
import msgspec
from nats.aio.msg import Msg

from outlive.actors.chaos.answers import lose_answers
from outlive.actors.chaos.freezing import freeze_self
from outlive.actors.chaos.holding import Holding
from outlive.actors.chaos.links import Links
from outlive.actors.chaos.orders import BREAK, CALM, KILL, LIST, WORDS, Active, Calm, Fault, Kill, Killed, Report
from outlive.actors.chaos.skew import skew
from outlive.actors.worker import Worker
from outlive.infra.bus import Bus
from outlive.infra.settings import Settings
from outlive.protocol.subjects import Subjects

T = TypeVar("T", Kill, Fault, Calm)


class _On:
    """A fault that is on."""

    def __init__(self, fault: Fault, tenant: str) -> None:
        self.fault: Final = fault
        self.actor: Final = tenant, str(fault.task_id)
        self.until: Final = time.monotonic() + fault.seconds
        self.scope: Final = anyio.CancelScope()


class Chaos:
    """Serves orders for one worker.

    Args:
        worker: one that runs.
        settings: where the servers really are.
        links: through which the worker reaches them; None: they cannot be cut, for the reason `unproxied`.
    """

    def __init__(self, worker: Worker, settings: Settings, links: Links | None, unproxied: str = "") -> None:
        self._worker = worker
        self._settings = settings
        self._links = links
        self._unproxied = unproxied
        self._incarnation = str(worker.incarnation)
        self._holding = Holding()
        self._on: list[_On] = []

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; then everything is whole again."""
        handlers: dict[str, Callable[[Msg], Awaitable[None]]] = {
            KILL: self._kill, BREAK: self._break, CALM: self._calm, LIST: self._list,
        }  # fmt: skip
        subjects = Subjects(self._settings.prefix)
        async with anyio.create_task_group() as self._group, Bus.of(self._settings, name="outlive chaos") as self._bus:
            for verb, handler in handlers.items():
                await self._bus.subscribe(subjects.chaos("*", verb), handler)
            task_status.started()
            await anyio.sleep_forever()

    # --- orders

    async def _kill(self, message: Msg) -> None:
        kill = await self._read(message, Kill)
        if kill is None or kill.incarnation != self._incarnation:
            return
        if kill.task_id is not None:
            tenant = message.subject.split(".")[1]
            await self._reply(message, self._kill_actor(tenant, kill.task_id))
            return
        await self._reply(message, self._killed(ok=True, text=f"worker {os.getpid()} was killed (SIGKILL)"))
        os.kill(os.getpid(), signal.SIGKILL)

    def _kill_actor(self, tenant: str, task_id: str) -> Killed:
        actor = self._actors.get((tenant, task_id))
        if actor is None:
            return self._killed(ok=False, text=f"worker {os.getpid()} has no actor of task {task_id} in memory")
        actor.kill()
        return self._killed(ok=True, text=f"the actor of task {task_id} in worker {os.getpid()} was killed")

    async def _break(self, message: Msg) -> None:
        fault = await self._read(message, Fault)
        if fault is None or fault.incarnation not in (None, self._incarnation):
            return
        if (refused := self._refusal(message, fault)) is not None:
            await self._reply(message, self._report(ok=False, text=refused))
            return
        on = _On(fault, message.subject.split(".")[1])
        self._on.append(on)
        text = f"worker {os.getpid()}: {WORDS[fault.fault]} for {fault.seconds:g} s"
        await self._reply(message, self._report(ok=True, text=text))
        self._group.start_soon(self._last, on)

    def _refusal(self, message: Msg, fault: Fault) -> str | None:
        if fault.fault == "freeze-actor":
            held = (message.subject.split(".")[1], fault.task_id) in self._actors
            return None if held else f"worker {os.getpid()} has no actor of task {fault.task_id} in memory"
        if self._links is None and fault.fault not in ("freeze-worker", "lose-answers", "skew-clock"):
            return f"worker {os.getpid()} does not reach its servers through a proxy: {self._unproxied}"
        return None

    async def _calm(self, message: Msg) -> None:
        calm = await self._read(message, Calm)
        if calm is None or calm.incarnation not in (None, self._incarnation):
            return
        ended, self._on = self._on, []
        for on in ended:
            on.scope.cancel()
        await self._reply(
            message,
            self._report(
                ok=True, text=f"worker {os.getpid()}: {len(ended)} fault{'' if len(ended) == 1 else 's'} ended"
            ),
        )

    async def _list(self, message: Msg) -> None:
        calm = await self._read(message, Calm)
        if calm is not None and calm.incarnation in (None, self._incarnation):
            await self._reply(message, self._report(ok=True, text=f"worker {os.getpid()}"))

    # --- faults

    async def _last(self, on: _On) -> None:
        """Let a fault be on for its time."""
        if on.fault.fault == "freeze-worker":
            freeze_self(self._settings, on.fault.seconds)
        try:
            self._apply(on.fault.fault)
            with on.scope, anyio.move_on_after(on.until - time.monotonic()):
                await (lose_answers() if on.fault.fault == "lose-answers" else anyio.sleep_forever())
        finally:
            if on in self._on:
                self._on.remove(on)
            self._apply(on.fault.fault)

    def _apply(self, kind: str) -> None:
        """Set a switch as the faults of its kind that are on want it: the strongest counts."""
        on = [each for each in self._on if each.fault.fault == kind]
        share = max((each.fault.share for each in on), default=0.0)
        measure = max((each.fault.measure for each in on), key=abs, default=0.0)
        match kind.partition("-"):
            case ("cut" | "slow" as how, _, where) if self._links is not None:
                link = self._links.nats if where == "nats" else self._links.postgres
                self._links.call(*((link.cut, bool(on)) if how == "cut" else (link.slow, measure)))
            case ("drop" | "duplicate" | "delay" as how, _, _) if self._links is not None:
                setattr(self._links.commands, how, share)
                if how == "delay":
                    self._links.commands.late = measure
            case ("skew", _, _):
                skew(measure)
            case ("freeze", _, "actor"):
                self._holding.hold_only({each.actor for each in on})
            case _:  # a freeze is over by now, and answers are lost as long as somebody waits for that
                pass

    # --- replies

    @property
    def _actors(self) -> Any:
        supervisor = self._worker.supervisor
        return supervisor.actors if supervisor else {}

    def _killed(self, *, ok: bool, text: str) -> Killed:
        return Killed(ok=ok, incarnation=self._incarnation, pid=os.getpid(), tasks=len(self._actors), message=text)

    def _report(self, *, ok: bool, text: str) -> Report:
        now = time.monotonic()
        active = [Active(fault=on.fault, left=round(max(on.until - now, 0.0), 1)) for on in self._on]
        return Report(
            ok=ok, incarnation=self._incarnation, host=platform.node(), pid=os.getpid(), message=text, active=active
        )

    async def _read(self, message: Msg, kind: type[T]) -> T | None:
        try:
            return msgspec.json.decode(message.data, type=kind)
        except msgspec.DecodeError as error:
            say, why = self._killed if kind is Kill else self._report, f"worker {os.getpid()} cannot read this: {error}"
            await self._reply(message, say(ok=False, text=why))
            return None

    async def _reply(self, message: Msg, reply: Killed | Report) -> None:
        if message.reply:
            await self._bus.publish(message.reply, msgspec.json.encode(reply))
            await self._bus.nc.flush()
