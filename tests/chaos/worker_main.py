"""A worker process for chaos tests, with settings from ``OUTLIVE_*``: `tests.chaos.forked` starts it, or
``python -m tests.chaos.worker_main MODULE:NAME FD``.

It writes ``ready`` to a descriptor when it serves; SIGTERM drains it (during its start it just ends), as for
``outlive worker``; on Linux it dies with the test process. `_skew` gives it a wrong wall clock on demand,
``CHAOS_TOOLS`` lets it be broken as with ``outlive worker --chaos``.
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
from outlive.actors.chaos import Chaos
from outlive.actors.chaos.links import Links
from outlive.actors.worker import Worker
from outlive.infra import failpoints
from outlive.infra.settings import Settings

PR_SET_PDEATHSIG = 1


async def serve(app: App, ready: int) -> None:
    """Serve until SIGTERM or SIGINT has drained the worker."""
    loop, scope = asyncio.get_running_loop(), anyio.CancelScope()
    asked: Callable[[], None] = scope.cancel
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: asked())  # noqa: PLW0108  # what it names changes
    found = Settings.load()
    links = Links(found) if os.environ.get("CHAOS_TOOLS") else None
    with scope:
        async with anyio.create_task_group() as group:
            async with Worker(app, links.through if links else found, watchdog=True) as worker:
                asked = worker.stop
                if links:
                    await group.start(Chaos(worker, found, links).run)
                os.write(ready, b"ready\n")
                os.close(ready)
                await worker.run()
            group.cancel_scope.cancel()  # not before it has drained


def main(spec: str, ready: int) -> None:
    """Find an app and serve it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _skew()
    failpoints.arm_from(os.environ.get(failpoints.VARIABLE, ""))
    module, _, name = spec.partition(":")
    logging.configure(json=False)
    app = getattr(importlib.import_module(module), name or "app")
    assert isinstance(app, App)
    asyncio.run(serve(app, ready))


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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
