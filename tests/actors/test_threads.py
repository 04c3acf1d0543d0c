"""Threads of synchronous tools: bounded, daemons, with the caller's context, abandoned ones counted."""

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Callable

import pytest

from outlive.actors.threads import Late, Threads

who: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
async def hold() -> AsyncIterator[threading.Event]:
    """Keeps threads until it is set."""
    event = threading.Event()
    yield event
    event.set()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a thread tells no event loop."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.002)


async def test_a_function_runs_in_a_daemon_thread_of_ours() -> None:
    threads = Threads(2)
    thread = await threads.call(threading.current_thread)
    assert thread.daemon and thread.name.startswith("outlive-tool-")
    assert thread is not threading.main_thread()


async def test_arguments_result_and_error_pass_through() -> None:
    threads = Threads(2)
    assert await threads.call(divmod, 7, 2) == (3, 1)
    assert await threads.call(sorted, [3, 1], reverse=True) == [3, 1]
    with pytest.raises(ZeroDivisionError, match="division"):
        await threads.call(lambda: 1 / 0)


async def test_an_error_that_a_future_cannot_carry_is_told_all_the_same() -> None:
    threads = Threads(1)

    def stop() -> None:
        raise StopIteration("done")

    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(stop)
    assert await threads.call(int, "1") == 1


async def test_the_callers_context_is_copied_and_not_changed() -> None:
    threads = Threads(1)

    def change() -> str:
        seen = who.get()
        who.set("the thread")
        return seen

    who.set("the caller")
    assert await threads.call(change) == "the caller"
    assert who.get() == "the caller"
    who.set("another caller")
    assert await threads.call(change) == "another caller"


async def test_no_more_threads_than_the_limit_and_they_are_used_again() -> None:
    threads = Threads(3)
    running, most, lock = 0, 0, threading.Lock()

    def work() -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        return threading.get_ident()

    used = await asyncio.gather(*(threads.call(work) for _ in range(30)))
    assert most == 3
    assert len(set(used)) == 3


async def test_one_after_the_other_needs_one_thread() -> None:
    threads = Threads(8)
    assert len({await threads.call(threading.get_ident) for _ in range(20)}) == 1


async def _abandon(threads: Threads, hold: threading.Event, key: str | None = None) -> None:
    begun = threading.Event()
    call = asyncio.create_task(threads.call(_hold, begun, hold, key=key))
    await until(begun.is_set)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_an_abandoned_thread_is_counted_until_it_ends_and_gives_its_place_away(hold: threading.Event) -> None:
    threads, before = Threads(1), threading.active_count()
    for _ in range(3):
        await _abandon(threads, hold)
    assert threads.abandoned == 3
    assert await threads.call(int, "1") == 1
    hold.set()
    await until(lambda: threads.abandoned == 0)
    assert await threads.call(int, "2") == 2
    await until(lambda: threading.active_count() == before + 1)


async def test_what_an_abandoned_thread_comes_to_is_known_by_its_name(hold: threading.Event) -> None:
    threads = Threads(1)
    told: list[Late] = []
    begun = threading.Event()
    call = asyncio.create_task(threads.call(_hold, begun, hold, key="k", told=told.append))
    await until(begun.is_set)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert threads.runs("k") and threads.late("k") is None
    hold.set()
    await threads.ended("k")
    assert not threads.runs("k")
    late = threads.late("k")
    assert late is not None and late.returned and late.value is True
    assert told == [late] and threads.late("k") is None


async def test_what_somebody_waits_for_is_not_late() -> None:
    threads = Threads(1)
    told: list[Late] = []
    assert await threads.call(int, "1", key="k", told=told.append) == 1
    assert not told and threads.late("k") is None and not threads.runs("k")


async def test_a_call_that_is_cancelled_while_it_waits_for_a_thread_never_runs(hold: threading.Event) -> None:
    threads = Threads(1)
    ran: list[int] = []
    first = asyncio.create_task(threads.call(hold.wait))
    waiting = [asyncio.create_task(threads.call(ran.append, n)) for n in range(3)]
    await asyncio.sleep(0.01)
    waiting[1].cancel()
    await asyncio.sleep(0)
    hold.set()
    await asyncio.gather(first, *waiting, return_exceptions=True)
    assert ran == [0, 2]
    assert threads.abandoned == 0


async def test_many_cancellations_leave_all_places_usable(hold: threading.Event) -> None:
    """A timed-out wait must not shrink the pool."""
    threads = Threads(3)

    async def impatient(n: int) -> None:
        try:
            async with asyncio.timeout(0.0005 * (n % 4)):
                await threads.call(time.sleep, 0.001)
        except TimeoutError:
            pass

    await asyncio.gather(*(impatient(n) for n in range(300)))
    await until(lambda: threads.abandoned == 0)
    meeting = threading.Barrier(4)
    at_once = [asyncio.create_task(threads.call(meeting.wait, 5)) for _ in range(3)]
    await until(lambda: meeting.n_waiting == 3)
    meeting.abort()
    await asyncio.gather(*at_once, return_exceptions=True)


def test_a_thread_that_ends_after_the_loop_disturbs_nobody() -> None:
    begun, hold = threading.Event(), threading.Event()
    mine: list[threading.Thread] = []

    def work() -> None:
        mine.append(threading.current_thread())
        _hold(begun, hold)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Threads(1).call(work)

    asyncio.run(main())
    assert begun.is_set()
    hold.set()
    mine[0].join(5)
    assert not mine[0].is_alive()


def _hold(begun: threading.Event, hold: threading.Event) -> bool:
    begun.set()
    return hold.wait(10)
