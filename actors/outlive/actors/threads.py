"""Daemon threads for synchronous tools: bounded, with the caller's context variables, and never in the way of an exit.

A thread cannot be stopped. One whose caller gave up goes on until its function returns: it is counted as abandoned, its
place goes to another, and what it comes to in the end is kept for whoever must know (see `Threads.late`).
"""

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

KEPT: Final = 100
"""Ends of abandoned threads that are kept: most are asked for at once, those of tasks that went elsewhere never."""


class Late(NamedTuple):
    """How a function ended that nobody waited for any more.

    Attributes:
        returned: it returned (else it raised).
        value: what it returned.
        at: when, by the event loop's clock.
    """

    returned: bool
    value: Any
    at: float


@dataclass(slots=True, eq=False)
class _Run:
    """One call in a thread."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    key: str | None
    told: Callable[[Late], None] | None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Threads:
    """A pool of daemon threads, started when needed: up to `limit` of them, and the abandoned ones besides."""

    def __init__(self, limit: int) -> None:
        """Run up to `limit` functions at a time that somebody waits for."""
        self._limit = limit
        self._runs: queue.SimpleQueue[_Run | None] = queue.SimpleQueue()  # None: one thread too many ends
        self._free = asyncio.Semaphore(limit)
        self._idle = 0
        self._alive = 0
        self._started = 0
        self._named: dict[str, _Run] = {}
        self._late: dict[str, Late] = {}
        self.abandoned = 0

    async def call(
        self,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        begin: Callable[[], None] | None = None,
        told: Callable[[Late], None] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run a function in a thread and return its result; waits while all threads are taken.

        Args:
            fn: what runs, with `args` and `kwargs`.
            args: see `fn`.
            key: the name by which `runs`, `ended` and `late` know the thread, whoever gives up on the call.
            begin: called when there is a thread for it; if it raises, nothing is run.
            told: called when a thread with a key ends that was given up on.
            kwargs: see `fn`.
        """
        await self._free.acquire()
        if begin is not None:
            try:
                begin()
            except BaseException:
                self._free.release()
                raise
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        future.add_done_callback(self._left)
        context = contextvars.copy_context()
        run = _Run(lambda: context.run(fn, *args, **kwargs), loop, future, key, told)
        if key is not None:
            self._named[key] = run
        if self._idle < 1:
            self._start()
        else:
            self._idle -= 1
        self._runs.put(run)
        return await future

    async def room(self) -> None:
        """Wait until a thread could run something at once."""
        async with self._free:
            pass

    def runs(self, key: str) -> bool:
        """True while a thread runs (or waits to run) under this name, whoever gave up on it."""
        return key in self._named

    async def ended(self, key: str) -> None:
        """Wait until no thread runs under this name."""
        while key in self._named:
            await self._named[key].ended.wait()

    def late(self, key: str) -> Late | None:
        """How the last thread of this name ended that was given up on; told once."""
        return self._late.pop(key, None)

    def _start(self) -> None:
        self._started += 1
        self._alive += 1
        threading.Thread(target=self._serve, name=f"outlive-tool-{self._started}", daemon=True).start()

    def _left(self, future: "asyncio.Future[Any]") -> None:
        """The caller is gone: with the result, or without it."""
        self._free.release()
        if future.cancelled():
            self.abandoned += 1

    def _serve(self) -> None:
        while (run := self._runs.get()) is not None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = run.work()
            except BaseException as raised:  # noqa: BLE001  # reason: handed to the caller
                error = raised
            try:
                run.loop.call_soon_threadsafe(self._settle, run, result, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits any more

    def _settle(self, run: _Run, result: Any, error: BaseException | None) -> None:
        if self._alive - max(0, self.abandoned) > self._limit:
            self._alive -= 1
            self._runs.put(None)
        else:
            self._idle += 1
        if run.future.cancelled():
            self.abandoned -= 1
            self._keep(run, Late(error is None, result, run.loop.time()))
        elif error is None:
            run.future.set_result(result)
        else:
            run.future.set_exception(RuntimeError(repr(error)) if isinstance(error, StopIteration) else error)
        run.ended.set()
        if run.key is not None and self._named.get(run.key) is run:
            del self._named[run.key]

    def _keep(self, run: _Run, late: Late) -> None:
        if run.key is None:
            return
        self._late[run.key] = late
        if len(self._late) > KEPT:
            del self._late[next(iter(self._late))]
        if run.told is not None:
            run.told(late)
