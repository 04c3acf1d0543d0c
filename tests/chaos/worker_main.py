"""A worker process for chaos tests: ``python -m tests.chaos.worker_main MODULE:NAME FD``, settings from ``OUTLIVE_*``.

Writes ``ready`` to the descriptor when it serves; SIGTERM drains it (during its start it
just ends), as for ``outlive worker``; on Linux it dies with the test process. `_skew` gives it a wrong wall clock on demand.
"""

import asyncio
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable

import anyio

from outlive.actors import logging
from outlive.actors.app import App
from outlive.actors.worker import Worker
from outlive.infra.settings import Settings

PR_SET_PDEATHSIG = 1


async def serve(app: App) -> None:
    """Serve until SIGTERM or SIGINT has drained the worker."""
    loop, scope = asyncio.get_running_loop(), anyio.CancelScope()
    asked: Callable[[], None] = scope.cancel
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: asked())  # noqa: PLW0108  # what it names changes
    with scope:
        async with Worker(app, Settings.load(), watchdog=True) as worker:
            asked = worker.stop
            _tell_ready()
            await worker.run()


def main() -> None:
    """Find the app and serve it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _skew()
    module, _, name = sys.argv[1].partition(":")
    logging.configure(json=False)
    app = getattr(importlib.import_module(module), name or "app")
    assert isinstance(app, App)
    asyncio.run(serve(app))


def _skew() -> None:
    """Give the process a wrong wall clock: off by ``CHAOS_SKEW`` seconds, and an hour further back at each SIGUSR1."""
    shift = float(os.environ.get("CHAOS_SKEW", "0"))
    true = time.time, time.time_ns

    def step_back(_number: int, _frame: object) -> None:
        nonlocal shift
        shift -= 3600

    signal.signal(signal.SIGUSR1, step_back)
    time.time = lambda: true[0]() + shift
    time.time_ns = lambda: true[1]() + int(shift * 1e9)


def _tell_ready() -> None:
    descriptor = int(sys.argv[2])
    os.write(descriptor, b"ready\n")
    os.close(descriptor)


if __name__ == "__main__":
    main()
