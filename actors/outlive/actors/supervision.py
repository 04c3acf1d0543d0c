"""Supervision of a worker's services: child specs, strategy rest_for_one, restart intensity (OTP's words).

The services stand in an order in which each may rely on those before it. When one fails, it and those after it are
stopped in reverse order and started again in order, at most so often within a period; then the tree gives up.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.abc
import structlog

from outlive.protocol.restart import Intensity

_log = structlog.get_logger("outlive.supervision")


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """A service.

    Attributes:
        id: its name in reports.
        start: runs it until cancelled; calls ``started()`` on the given status when those after it may start.
        fatal: errors after which a restart is useless; they end the tree at once.
    """

    id: str
    start: Callable[[anyio.abc.TaskStatus[None]], Awaitable[None]]
    fatal: tuple[type[BaseException], ...] = ()


@dataclass(slots=True)
class _Running:
    scope: anyio.CancelScope
    gone: anyio.Event


class ServiceStopped(RuntimeError):
    """A service returned although nobody stopped it."""


async def rest_for_one(children: Sequence[ChildSpec], intensity: Intensity, *, started: Callable[[], None]) -> None:
    """Run the services until cancelled.

    Args:
        children: in start order.
        intensity: how many restarts within which period.
        started: called when all run for the first time.

    Raises:
        Exception: the error of the service whose restart was one too many, or a fatal one.
    """
    tree = _Tree(children)
    history: list[float] = []
    async with anyio.create_task_group() as group:
        first = 0
        while True:
            failed = await tree.start(group, first)
            if failed is None:
                started()
                failed = await tree.failures.receive()
            first, error = failed
            await tree.stop(first)
            allowed, history = intensity.allowed(history, anyio.current_time())
            spec = children[first]
            _log.error("service failed", service=spec.id, error=repr(error), restarted=allowed, exc_info=error)
            if not allowed or isinstance(error, spec.fatal):
                group.cancel_scope.cancel()
                raise error


class _Tree:
    def __init__(self, children: Sequence[ChildSpec]) -> None:
        self._children = children
        self._running: dict[int, _Running] = {}
        self._send, self.failures = anyio.create_memory_object_stream[tuple[int, Exception]](len(children))

    async def start(self, group: anyio.abc.TaskGroup, first: int) -> tuple[int, Exception] | None:
        """Start from `first` on, in order. Returns the failure of one that did not come up."""
        for number in range(first, len(self._children)):
            try:
                await group.start(self._run, number)
            except Exception as error:  # noqa: BLE001  # reason: judged by the strategy
                self._running.pop(number, None)
                return number, error
        return None

    async def stop(self, first: int) -> None:
        """Stop from the last down to `first`; what they reported meanwhile is part of the same failure."""
        for number in sorted((n for n in self._running if n >= first), reverse=True):
            running = self._running.pop(number)
            running.scope.cancel()
            await running.gone.wait()
        while True:
            try:
                self.failures.receive_nowait()
            except anyio.WouldBlock:
                return

    async def _run(self, number: int, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        spec = self._children[number]
        status = _Once(task_status)
        running = self._running[number] = _Running(anyio.CancelScope(), anyio.Event())
        try:
            with running.scope:
                await _serve(spec, status, running.scope)
        except Exception as error:
            if not status.told:
                raise  # reaches `start`
            self._send.send_nowait((number, _unwrap(error)))
        finally:
            running.gone.set()


async def _serve(spec: ChildSpec, status: "_Once", scope: anyio.CancelScope) -> None:
    await spec.start(status)
    if not scope.cancel_called:
        raise ServiceStopped(f"{spec.id} returned although nobody stopped it")


class _Once:
    """A task status that remembers whether it was told."""

    def __init__(self, status: anyio.abc.TaskStatus[None]) -> None:
        self._status = status
        self.told = False

    def started(self, value: Any = None) -> None:
        self.told = True
        self._status.started(value)


def _unwrap(error: Exception) -> Exception:
    """A group of one error is that error: reports name the cause."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
