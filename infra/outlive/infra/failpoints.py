"""Named points in the code at which a test (or a chaos run) can kill, delay, hang or fail the process.

Not armed, a point costs the test of one module flag::

    if failpoints.armed:
        await failpoints.hit("outcome.before_commit")

Armed by `arm`, or for a whole process by the environment, read once at import::

    OUTLIVE_FAILPOINTS="effect.after=kill@3,publish.before=sleep:0.5"

``@n`` lets the point pass n - 1 times; the action then holds for the n-th hit only (``kill``, ``stop``, ``error``,
``lose``) or from the n-th hit on (``sleep``, ``hang``), until `disarm`. `observe` tells of every point that is passed.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NoReturn

VARIABLE: Final = "OUTLIVE_FAILPOINTS"

NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ingest.before_commit": "Commands are read from the stream; their inbox rows and the cursor are not committed.",
        "ingest.after_commit": "Inbox rows and cursor are committed; no owner was woken.",
        "claim.before": "The worker knows of due tasks and has claimed none of them.",
        "claim.after": "The claim is committed; no actor was started.",
        "question.before_commit": "A question to a person (a yes, an unknown outcome) is in the batch that is about to be committed.",
        "question.after_commit": "The question is committed; its task still lies in memory.",
        "intent.before_commit": "An operation's intent is in the batch that is about to be committed.",
        "intent.after_commit": "The intent is committed; the actor was not told.",
        "effect.before": "The intent is durable and the tool is about to be called.",
        "effect.after": "The tool has returned; nothing is recorded.",
        "unknown.before_commit": "That an attempt was lost is in the batch that is about to be committed.",
        "unknown.after_commit": "An attempt is recorded as unknown; nobody has been asked about it.",
        "reconcile.before": "A reconciler is about to be called.",
        "reconcile.after": "The reconciler has answered; nothing is recorded.",
        "outcome.before_commit": "A step's outcome is in the batch that is about to be committed.",
        "outcome.after_commit": "The outcome is committed; the actor was not told and nothing is published.",
        "wait.before_commit": "The begin of a wait (a sleep, a signal) is in the batch that is about to be committed.",
        "wait.after_commit": "The wait and its deadline are committed; the actor was not told.",
        "child.before_commit": "A child's row is in the batch that is about to be committed.",
        "child.after_commit": "The child is committed; no worker was woken for it.",
        "leave.before_commit": "That a task is let go (it waits, is paused, is handed back) is about to be committed.",
        "leave.after_commit": "The task has no owner any more; its actor still lies in memory.",
        "clerk.before_commit": "Commands to tasks without an actor are applied in a transaction that is not committed.",
        "clerk.after_commit": "They are applied; no answer was sent and nobody was woken.",
        "tell.before_commit": "News for relatives (an end, a cancel) are in a transaction that is not committed.",
        "tell.after_commit": "They lie in the relatives' inboxes; no owner was woken.",
        "publish.before": "An event is committed and about to be published.",
        "publish.after": "The stream has acknowledged an event; the mark is not written.",
        "final.before_commit": "A task's end is in the batch that is about to be committed.",
        "final.after_commit": "The end is committed; its event is not published.",
    }
)
"""Every failpoint and what is true when it is hit."""

HANG: Final = 86_400.0
"""Seconds for which ``hang`` holds: longer than any test or lease."""


class FailpointError(Exception):
    """Raised by a failpoint with the action ``error``."""


Observer = Callable[[str, int, str], None]
"""Told of each pass: the point, its number among the passes of this point (from 1), and what it is about."""

_ACTIONS: Final = frozenset({"", "kill", "stop", "error", "lose", "sleep", "hang"})


@dataclass(slots=True)
class _Point:
    action: str = ""
    seconds: float = 0.0
    after: int = 1
    hits: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    released: asyncio.Event = field(default_factory=asyncio.Event)


armed: bool = False
"""True while any failpoint is armed or observed: the only thing that code looks at otherwise."""

_points: dict[str, _Point] = {}
_observer: Observer | None = None
_passed: Counter[str] = Counter()


def arm(name: str, action: str = "", *, after: int = 1) -> None:
    """Arm a failpoint.

    Args:
        name: one of `NAMES`.
        action: ``kill`` and ``stop`` (SIGKILL and SIGSTOP to this process), ``error`` (raise `FailpointError`), ``lose``
            (raise `TimeoutError`, as where an answer is lost), ``sleep:S`` (seconds), ``hang`` (until `disarm`), or
            empty: only count, for `reached` and `hits`.
        after: the hit at which it acts, from 1.

    Raises:
        ValueError: no such name or action.
    """
    global armed  # noqa: PLW0603  # one flag, so that a point that is not armed costs one look
    if name not in NAMES:
        raise ValueError(f"there is no failpoint {name!r}; there are: {', '.join(NAMES)}")
    verb, _, seconds = action.partition(":")
    if verb not in _ACTIONS or after < 1 or bool(seconds) != (verb == "sleep"):
        known = "kill, stop, error, lose, sleep:SECONDS or hang"
        raise ValueError(f"{name}: {action!r} (after={after}) is no action; write {known}")
    _release(_points.get(name))
    _points[name] = _Point(verb, float(seconds or 0), after)
    armed = True


def arm_from(text: str) -> None:
    """Arm what ``name=action[@n],...`` says (the form of ``OUTLIVE_FAILPOINTS``)."""
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, rest = item.partition("=")
        action, _, count = rest.partition("@")
        if count and not count.isdecimal():
            raise ValueError(f"{item!r}: after @ stands the number of the hit at which it acts")
        arm(name.strip(), action.strip(), after=int(count or 1))


def disarm(name: str | None = None) -> None:
    """Disarm one failpoint, or all; what hangs or sleeps there goes on."""
    global armed  # noqa: PLW0603  # see arm
    for each in [name] if name else list(_points):
        _release(_points.pop(each, None))
    armed = bool(_points) or _observer is not None


def observe(observer: Observer | None) -> None:
    """Have every pass of every point told, counted from now on, before its action; None: no more."""
    global armed, _observer  # noqa: PLW0603  # see arm
    _observer = observer
    _passed.clear()
    armed = bool(_points) or observer is not None


def hits(name: str) -> int:
    """How many times an armed failpoint was hit (0 when not armed)."""
    point = _points.get(name)
    return point.hits if point else 0


async def reached(name: str) -> None:
    """Wait until an armed failpoint of this process acts (with an empty action: is hit for the ``after``-th time)."""
    if name not in _points:
        arm(name)
    await _points[name].reached.wait()


async def hit(name: str, about: str = "") -> None:
    """Pass the point `name` in a coroutine; acts if it is armed and its turn has come. `about` is for an observer."""
    point = _due(name, about)
    if point is None:
        return
    if point.action in {"sleep", "hang"}:
        await _until_released(point)
    else:
        _act(name, point)


def hit_sync(name: str, about: str = "") -> None:
    """Pass the point `name` outside a coroutine (in a thread: the sleep blocks it, and `reached` is not served)."""
    point = _due(name, about)
    if point is None:
        return
    if point.action in {"sleep", "hang"}:
        _block_until_released(point)
    else:
        _act(name, point)


def _due(name: str, about: str) -> _Point | None:
    if _observer is not None:
        _passed[name] += 1
        _observer(name, _passed[name], about)
    point = _points.get(name)
    if point is None:
        return None
    point.hits += 1
    if point.hits < point.after:
        return None
    point.reached.set()
    return point


def _act(name: str, point: _Point) -> None:
    if point.hits > point.after:
        return
    if point.action == "kill":
        _kill()
    if point.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if point.action == "lose":
        raise TimeoutError(f"the answer was lost (failpoint {name})")
    if point.action == "error":
        raise FailpointError(f"failpoint {name}")


def _kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL returned")


def _wait(point: _Point) -> float:
    return HANG if point.action == "hang" else point.seconds


async def _until_released(point: _Point) -> None:
    try:
        async with asyncio.timeout(_wait(point)):
            await point.released.wait()
    except TimeoutError:
        return


def _block_until_released(point: _Point) -> None:
    end = time.monotonic() + _wait(point)
    while time.monotonic() < end and not point.released.is_set():
        time.sleep(0.005)


def _release(point: _Point | None) -> None:
    if point is not None:
        point.released.set()


arm_from(os.environ.get(VARIABLE, ""))
