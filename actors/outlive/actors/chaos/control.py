"""Orders to workers that were started with ``--chaos``, from any program: ``async with Control() as control``."""

import asyncio
import contextlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio
import msgspec
from nats.aio.msg import Msg

from outlive.actors.chaos.orders import BREAK, CALM, KILL, LIST, Calm, Fault, Kill, Killed, Report
from outlive.infra import embedded
from outlive.infra.bus import Bus, NoResponders, RequestTimeout
from outlive.infra.settings import Settings
from outlive.protocol.errors import OutliveError
from outlive.protocol.subjects import Subjects

PATIENCE: Final = 2.0
"""Seconds within which a worker must reply."""
_ALL: Final = 0.5  # seconds for which replies of several workers are collected

R = TypeVar("R", Killed, Report)


class NotBroken(OutliveError):
    """Nothing was broken; the message says why and what to do."""


class Control:
    """Breaks and mends running workers.

    Args:
        settings: where NATS is, tenant, prefix; None reads ``OUTLIVE_*``. Without a URL the live servers of the state
            folder are used.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = embedded.locate(settings or Settings.load())
        self._subjects = Subjects(self._settings.prefix)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._bus = await self._stack.enter_async_context(Bus.of(self._settings, name="outlive chaos"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def kill(self, incarnation: str, task_id: str | None = None) -> Killed:
        """SIGKILL a worker, or end only its actor of a task. Raises `NotBroken`."""
        return await self._one(KILL, Kill(incarnation=incarnation, task_id=task_id), incarnation, Killed)

    async def begin(self, fault: Fault) -> Sequence[Report]:
        """Let a fault begin, in one worker or in all; what they said. Raises `NotBroken`."""
        if fault.incarnation is not None:
            return [await self._one(BREAK, fault, fault.incarnation, Report)]
        return self._some(await self._every(BREAK, fault))

    async def calm(self, incarnation: str | None = None) -> Sequence[Report]:
        """End all faults of one worker, or of all. Frozen ones hear nothing: see `freezing`. Raises `NotBroken`."""
        return self._some(await self._every(CALM, Calm(incarnation=incarnation)))

    async def list(self, incarnation: str | None = None) -> Sequence[Report]:
        """Return what is on in every worker that can be broken and hears; empty where there is none."""
        return await self._every(LIST, Calm(incarnation=incarnation))

    async def _one(self, verb: str, order: msgspec.Struct, incarnation: str, kind: type[R]) -> R:
        subject = self._subjects.chaos(self._settings.tenant, verb)
        try:
            reply = await self._bus.request(subject, msgspec.json.encode(order), timeout=PATIENCE)
        except NoResponders:
            raise NotBroken("no worker here was started with --chaos. Start some: outlive up APP --chaos") from None
        except RequestTimeout:
            raise NotBroken(
                f"worker {incarnation} does not answer: it was not started with --chaos, is frozen, or has ended"
            ) from None
        return msgspec.json.decode(reply.data, type=kind)

    async def _every(self, verb: str, order: msgspec.Struct) -> Sequence[Report]:
        heard: list[Report] = []

        async def hear(message: Msg) -> None:
            with contextlib.suppress(msgspec.DecodeError):  # an empty one: nobody listens
                heard.append(msgspec.json.decode(message.data, type=Report))

        inbox = self._bus.nc.new_inbox()
        subscription = await self._bus.subscribe(inbox, hear)
        try:
            subject = self._subjects.chaos(self._settings.tenant, verb)
            await self._bus.nc.publish(subject, msgspec.json.encode(order), reply=inbox)
            await asyncio.sleep(_ALL)
        finally:
            with anyio.CancelScope(shield=True):
                await subscription.unsubscribe()
        return sorted(heard, key=lambda report: report.pid)

    def _some(self, reports: Sequence[Report]) -> Sequence[Report]:
        if not reports:
            raise NotBroken("no worker here that was started with --chaos answers. Start some: outlive up APP --chaos")
        return reports


def refused(reports: Sequence[Any]) -> str | None:
    """Return why nobody obeyed; None if somebody did."""
    return None if any(report.ok for report in reports) else "; ".join(report.message for report in reports)
