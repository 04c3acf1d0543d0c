"""Daemon threads for synchronous tools: bounded, with the caller's context variables, and never in the way of an exit.

A thread cannot be stopped. One whose caller gave up goes on until its function returns; while it lives it takes up
its place here and is counted as abandoned.
"""

import asyncio
import contextlib
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

Job = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """A pool of at most `limit` daemon threads, started when needed."""

    def __init__(self, limit: int) -> None:
        """Hold up to `limit` threads."""
        self._limit = limit
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._free = asyncio.Semaphore(limit)
        self._idle = 0
        self._started = 0
        self.abandoned = 0
        self._named: dict[str, asyncio.Event] = {}  # set when the thread has ended

    async def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        begin: Callable[[], None] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function in a thread and return its result; waits while all threads are taken.

        With a `key`, `ended` can wait for the thread by that name, whoever gives up on the call. `begin` is called when
        there is a thread for it; if it raises, nothing is run.
        """
        await self._free.acquire()
        if begin is not None:
            try:
                begin()
            except BaseException:
                self._free.release()
                raise
        if key is not None:
            fn = self._named_run(key, fn)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(self._left)
        context = contextvars.copy_context()
        if self._idle < 1:
            self._start()
        else:
            self._idle -= 1
        self._jobs.put((lambda: context.run(fn, *args, **kwargs), loop, future))
        return await future

    async def room(self) -> None:
        """Wait until a thread could run something at once."""
        async with self._free:
            pass

    async def ended(self, key: str) -> None:
        """Wait until no thread runs (or waits to run) under this name, whoever gave up on it."""
        while key in self._named:
            await self._named[key].wait()

    def _named_run(self, key: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._named[key] = ended

        def end() -> None:
            ended.set()
            if self._named.get(key) is ended:
                del self._named[key]

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return fn(*args, **kwargs)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(end)

        return run

    def _start(self) -> None:
        self._started += 1
        threading.Thread(target=self._serve, name=f"outlive-tool-{self._started}", daemon=True).start()

    def _left(self, future: "asyncio.Future[Any]") -> None:
        if future.cancelled():
            self.abandoned += 1

    def _serve(self) -> None:
        while True:
            job, loop, future = self._jobs.get()
            result: Any = None
            error: BaseException | None = None
            try:
                result = job()
            except BaseException as raised:  # noqa: BLE001  # reason: handed to the caller
                error = raised
            try:
                loop.call_soon_threadsafe(self._settle, future, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _settle(self, future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
        self._idle += 1
        self._free.release()
        if future.cancelled():
            self.abandoned -= 1
        elif error is None:
            future.set_result(result)
        else:
            future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
