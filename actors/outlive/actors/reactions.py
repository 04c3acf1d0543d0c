"""What an error means, and what follows from it. Pure: decided before any retry."""

import asyncio
import socket
from random import Random
from typing import Final

from outlive.protocol import backoff
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import RateLimited, ToolError
from outlive.protocol.operations import ErrorClass
from outlive.protocol.tools import AnyTool

PASSING: Final = frozenset({ErrorClass.TIMEOUT, ErrorClass.RATE_LIMITED, ErrorClass.UNAVAILABLE, ErrorClass.NOT_SENT})
"""Classes after which the same call may succeed."""


def classify(error: BaseException) -> ErrorClass:
    """Name the class of a tool's exception.

    A tool that knows better raises one of `outlive.protocol.errors`. Of the standard library's errors only those are
    taken for a passing fault that are about the network; anything else is a bug of the tool or its arguments.
    """
    match error:
        case ToolError():
            return error.error_class
        case NotStorable():
            return ErrorClass.NOT_STORABLE
        case ConnectionRefusedError() | socket.gaierror():
            return ErrorClass.NOT_SENT
        case TimeoutError() | asyncio.CancelledError():
            return ErrorClass.TIMEOUT
        case ConnectionError():
            return ErrorClass.UNAVAILABLE
        case PermissionError():
            return ErrorClass.PERMISSION_DENIED
        case _:
            return ErrorClass.BUG


def wait_before_retry(tool: AnyTool, error: BaseException, attempt: int, random: Random) -> float | None:
    """Return the seconds to wait before the next attempt; None when there is none.

    Args:
        tool: read-only or idempotent, so the same call may be made again.
        error: what the attempt ended with.
        attempt: its number, from 1.
        random: for the jitter.
    """
    policy = tool.retries
    if classify(error) not in PASSING or attempt >= policy.max_attempts:
        return None
    told = error.retry_after if isinstance(error, RateLimited) else None
    pause = backoff.delay(attempt, base=policy.base, cap=policy.cap, random=random)
    return pause if told is None else told + pause * 0.1
