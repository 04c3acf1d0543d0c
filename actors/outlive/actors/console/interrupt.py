"""Ctrl-C and SIGTERM for commands that must leave nothing behind: the first one stops in order, the second hurries."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Final

import anyio

from outlive.actors.console import codes

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

LoopFactory = Callable[[], asyncio.AbstractEventLoop]


class Interrupt:
    """What the signals do.

    Attributes:
        scope: around the whole command.
        hurry: an event for whoever stops in order.
        first: called by the first signal; cancels the scope unless something else was put here.
        second: called by every further one; sets `hurry` unless something else was put here.
    """

    def __init__(self) -> None:
        """Nothing was asked yet; needs a running event loop."""
        self.scope: Final = anyio.CancelScope()
        self.hurry: Final = anyio.Event()
        self.first: Callable[[], None] = self.scope.cancel
        self.second: Callable[[], object] = self.hurry.set
        self._asked = False

    def __call__(self) -> None:
        """Take a signal."""
        if self._asked:
            self.second()
        else:
            self._asked = True
            self.first()


def run(
    command: Callable[[Interrupt], Awaitable[int]],
    *,
    interrupted: int = codes.INTERRUPTED,
    loop_factory: LoopFactory | None = None,
) -> int:
    """Run a command to its end; one that is interrupted is cancelled, cleans up, and gives the code `interrupted`."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(_interruptible(command, interrupted))


async def _interruptible(command: Callable[[Interrupt], Awaitable[int]], interrupted: int) -> int:
    interrupt, loop = Interrupt(), asyncio.get_running_loop()
    ends_with_it = signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # the program, see `__main__`
    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt)
    try:
        with interrupt.scope:
            return await command(interrupt)
        return interrupted
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            if ends_with_it:  # a signal that comes late must not cut the last words short
                signal.signal(number, signal.SIG_IGN)


def fast_loop() -> LoopFactory | None:
    """Return what makes uvloop's event loop, where it is installed."""
    try:
        import uvloop  # noqa: PLC0415  # only workers pay for it
    except ImportError:
        return None
    factory: Any = uvloop.new_event_loop
    return factory  # type: ignore[no-any-return]  # uvloop is typed loosely
