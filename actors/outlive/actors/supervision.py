"""Supervision of a worker's services: child specs, strategy rest_for_one, restart intensity (OTP's words).

The services stand in an order in which each may rely on those before it. When one fails, it and those after it are
stopped in reverse order and started again in order, at most so often within a period; then the tree gives up. However
the tree ends, all services are stopped in reverse order, one after the other.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import anyio.abc
import structlog

from outlive.protocol.restart import Intensity

BACKOFF: Final = 0.1
"""Seconds before the second restart within a period; the first one is immediate, each further one waits twice as long."""

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


class ServiceStopped(RuntimeError):
    """A service returned although nobody stopped it."""


async def rest_for_one(children: Sequence[ChildSpec], intensity: Intensity, *, started: Callable[[], None]) -> None:
    """Run the services until cancelled.

    Args:
        children: in start order.
        intensity: how many restarts within which period.
        started: called whenever all of them run.

    Raises:
        Exception: the error of the service whose restart was one too many, or a fatal one.
    """
    error: BaseException | None = None
    async with anyio.create_task_group() as group:
        tree = _Tree(children, group)
        try:
            error = await _supervise(tree, children, intensity, started)
        finally:
            with anyio.CancelScope(shield=True):
                await tree.stop(0)
    if error is not None:
        raise error


async def _supervise(
    tree: "_Tree", children: Sequence[ChildSpec], intensity: Intensity, started: Callable[[], None]
) -> BaseException:
    """Start and restart. Returns the error at which the tree gives up."""
    history: list[float] = []
    first = 0
    while True:
        if await tree.start(first):
            started()
        first, error = await tree.failure()
        allowed, history = intensity.allowed(history, anyio.current_time())
        allowed = allowed and not isinstance(error, children[first].fatal)
        _log.error("service failed", service=children[first].id, restarted=allowed, exc_info=error)
        if not allowed:
            return error
        await anyio.sleep(BACKOFF * 2 ** (len(history) - 2) if len(history) > 1 else 0)


@dataclass(slots=True)
class _Running(anyio.abc.TaskStatus[None]):
    """One run of a service. Its scope is shielded: the tree alone stops it, in its turn."""

    scope: anyio.CancelScope = field(default_factory=lambda: anyio.CancelScope(shield=True))
    settled: anyio.Event = field(default_factory=anyio.Event)
    """It has started, or failed to."""
    gone: anyio.Event = field(default_factory=anyio.Event)

    def started(self, value: Any = None) -> None:  # noqa: ARG002  # the interface's; nobody has a value to tell
        self.settled.set()


class _Tree:
    def __init__(self, children: Sequence[ChildSpec], group: anyio.abc.TaskGroup) -> None:
        self._children = children
        self._group = group
        self._running: dict[int, _Running] = {}
        self._failed: dict[int, BaseException] = {}
        self._failing = anyio.Event()

    async def start(self, first: int) -> bool:
        """Start from `first` on, in order; False as soon as any service has failed."""
        for number in range(first, len(self._children)):
            running = self._running[number] = _Running()
            self._group.start_soon(self._run, number, running)
            await running.settled.wait()
            if self._failed:
                return False
        return True

    async def failure(self) -> tuple[int, BaseException]:
        """Wait for a failure, stop the service and those after it; the first in the order counts, however many failed."""
        await self._failing.wait()
        first = len(self._children)
        while (lowest := min(self._failed)) < first:
            first = lowest
            await self.stop(first)
        error = self._failed[first]
        self._failed, self._failing = {}, anyio.Event()
        return first, error

    async def stop(self, first: int) -> None:
        """Stop from the last down to `first`."""
        for number in sorted((n for n in self._running if n >= first), reverse=True):
            running = self._running.pop(number)
            running.scope.cancel()
            await running.gone.wait()

    async def _run(self, number: int, running: _Running) -> None:
        spec = self._children[number]
        try:
            with running.scope:
                await spec.start(running)
            if not running.scope.cancel_called:
                self._fail(number, ServiceStopped(f"{spec.id} returned although nobody stopped it"))
        except Exception as error:  # noqa: BLE001  # judged by the strategy
            self._fail(number, unwrap(error))
        finally:
            running.settled.set()
            running.gone.set()

    def _fail(self, number: int, error: BaseException) -> None:
        self._failed[number] = error
        self._failing.set()


def unwrap(error: BaseException) -> BaseException:
    """Return what is inside groups of one error: reports name the cause."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
