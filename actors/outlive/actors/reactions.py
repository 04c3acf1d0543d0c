"""What follows from an error of a tool. Pure: decided before any retry."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Final

from outlive.actors.classifier import classify, told_to_wait
from outlive.protocol import backoff
from outlive.protocol.errors import ToolChanged
from outlive.protocol.operations import ErrorClass
from outlive.protocol.tools import AnyTool

__all__ = [
    "MAYBE_DONE",
    "PASSING",
    "Fail",
    "IfNot",
    "Outdated",
    "Reaction",
    "Retry",
    "Throttle",
    "Unknown",
    "classify",
    "later",
    "react",
]

PASSING: Final = frozenset({ErrorClass.TIMEOUT, ErrorClass.RATE_LIMITED, ErrorClass.UNAVAILABLE, ErrorClass.NOT_SENT})
"""Classes after which the same call may succeed."""

MAYBE_DONE: Final = frozenset({ErrorClass.TIMEOUT, ErrorClass.UNAVAILABLE})
"""Classes after which an effect may have happened."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again.

    Attributes:
        after: seconds from now, never less than the remote asked for.
    """

    after: float


@dataclass(frozen=True, slots=True)
class Throttle:
    """Pause the task as throttled: the remote does not let us in.

    Attributes:
        until: before then a call is useless, and it is made then; None: when a person says so.
    """

    until: datetime | None


@dataclass(frozen=True, slots=True)
class Fail:
    """The step has failed for good; nothing is sent again by itself."""


@dataclass(frozen=True, slots=True)
class Outdated:
    """Pause the task: the tool is no longer what the task knows it as, and nothing was called."""


IfNot = Retry | Throttle | Fail


@dataclass(frozen=True, slots=True)
class Unknown:
    """The effect may have happened and is not to be sent again before that is known.

    Attributes:
        if_not: what follows when it turns out that it did not happen.
    """

    if_not: IfNot


Reaction = IfNot | Unknown | Outdated


def react(
    tool: AnyTool, error: BaseException, attempt: int, started_at: datetime, now: datetime, random: Random
) -> Reaction:
    """Decide what follows an attempt that ended with an error.

    Args:
        tool: with its nature, its retry policy and its classifier.
        error: what the attempt ended with.
        attempt: its number, from 1.
        started_at: when the first attempt began (aware).
        now: when this one ended (aware).
        random: for the jitter.
    """
    if isinstance(error, ToolChanged):
        return Outdated()
    error_class = classify(error, tool.classify)
    if_nothing_happened = _unless_done(tool, error, error_class, attempt, started_at, now, random)
    if tool.read_only:
        return if_nothing_happened
    maybe = error_class in MAYBE_DONE
    if tool.idempotent:
        forgotten = _forgets_its_key(tool, if_nothing_happened, started_at, now)
        # a limited try says nothing of those before it
        return Unknown(if_nothing_happened) if forgotten and (maybe or attempt > 1) else if_nothing_happened
    return Unknown(if_nothing_happened) if maybe else if_nothing_happened


def _unless_done(
    tool: AnyTool,
    error: BaseException,
    error_class: ErrorClass,
    attempt: int,
    started_at: datetime,
    now: datetime,
    random: Random,
) -> IfNot:
    policy = tool.retries
    if error_class not in PASSING:
        return Fail()
    told = told_to_wait(error, now)
    if told is not None and told > policy.max_wait:
        return Throttle(later(now, told))
    pause = backoff.delay(attempt, base=policy.base, cap=policy.cap, random=random)
    after = pause if told is None else told + pause * 0.1  # those who were told the same time do not return at once
    elapsed = (now - started_at).total_seconds() + after
    if attempt < policy.max_attempts and (policy.max_elapsed is None or elapsed <= policy.max_elapsed):
        return Retry(after)
    if error_class is ErrorClass.RATE_LIMITED:
        return Throttle(None)  # however often we waited: a person decides when to ask again
    return Fail()


def _forgets_its_key(tool: AnyTool, following: IfNot, started_at: datetime, now: datetime) -> bool:
    """Tell whether the remote will have forgotten the key of the first attempt by the time of the next."""
    if tool.key_ttl is None or isinstance(following, Fail):
        return False
    wait = following.after if isinstance(following, Retry) else ((following.until or now) - now).total_seconds()
    return (now - started_at).total_seconds() + wait >= tool.key_ttl


def later(now: datetime, seconds: float) -> datetime:
    """Return so many seconds from now, at most a year."""
    return now + timedelta(seconds=min(seconds, 365 * 86_400.0))  # "9" * 9 seconds are garbage, and no error here
