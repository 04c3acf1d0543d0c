"""Ctrl-C and SIGTERM for commands that must leave nothing behind: the first one stops in order, the second hurries."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

INTERRUPTED: Final = 130
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """What signals have asked for.

    Attributes:
        scope: is cancelled by the first signal.
        hurry: is set by the second one.
    """

    def __init__(self) -> None:
        """Nothing was asked yet; needs a running event loop."""
        self.scope = anyio.CancelScope()
        self.hurry = anyio.Event()

    def __call__(self) -> None:
        """Take a signal."""
        if self.scope.cancel_called:
            self.hurry.set()
        self.scope.cancel()


def run(
    command: Callable[[Interrupt], Awaitable[int]], *, loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> int:
    """Run a command to its end; an interrupted one is cancelled, cleans up, and gives 130 unless it returns a code."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_interruptible(command))


async def _interruptible(command: Callable[[Interrupt], Awaitable[int]]) -> int:
    interrupt, loop = Interrupt(), asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    with interrupt.scope:
        return await command(interrupt)
    return INTERRUPTED


def default_loop() -> Callable[[], Any] | None:
    """Return uvloop's factory where it is installed."""
    try:
        import uvloop  # noqa: PLC0415  # only workers pay for it
    except ImportError:
        return None
    factory: Callable[[], Any] = uvloop.new_event_loop
    return factory
