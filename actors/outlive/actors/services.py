"""What lives as long as a worker and is shared by its tasks: connections that tools open at their first use."""

import contextvars
from collections.abc import Callable, Coroutine, Hashable
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

import anyio.abc

from outlive.protocol.tools import AnyTool

T = TypeVar("T")


class Services:
    """One per worker. What is started here ends with the worker, after its tasks have.

    Attributes:
        tools: all tools of the worker by name. Those that become known while it runs (of a server, of somebody else's
            agent) are put in, so that messages about them are right.
    """

    def __init__(self, group: anyio.abc.TaskGroup, tools: dict[str, AnyTool]) -> None:
        self.tools: Final = tools
        self._group = group
        self._outside = contextvars.copy_context()  # what lives on must not hold on to the task that asked for it first
        self._shared: dict[Hashable, Any] = {}

    def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what this worker has under a key, made at the first call."""
        if key not in self._shared:
            self._shared[key] = make()
        return cast("T", self._shared[key])

    def start(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run something beside the tasks until it ends or the worker does, which cancels it. It must not raise."""
        self._outside.copy().run(self._group.start_soon, serve)


current: Final[ContextVar[Services | None]] = ContextVar("outlive_services", default=None)
"""Those of the worker that runs this code."""
