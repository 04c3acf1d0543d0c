"""What is stored of an error, and of a value that cannot be kept: readable anywhere, without the exception's class."""

from typing import Final

from outlive.actors.classifier import classify
from outlive.protocol import codec
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Failure

MESSAGE_LENGTH: Final = 20_000
"""Characters of an error's message that are stored."""


def printable(text: str) -> str:
    """Make a text one that can be stored: lone surrogates (of file names, for instance) become question marks."""
    return text.encode("utf-8", "replace").decode()


def column(text: str) -> str:
    """Make a text one that can stand in a column: as `printable`, at most 500 characters, and Postgres has no NUL."""
    return printable(text).replace("\0", "\\0")[:500]


def given_up(step_id: str, what: str) -> Failure:
    """Return what is stored where the function gave a step up in flight: raised as `TimeoutError` on every run."""
    message = f"{what} was given up in flight by the task's own timeout"
    return Failure(type="TimeoutError", message=message, error_class="timeout", step_id=step_id)


def failure_of(error: BaseException, step_id: str | None = None, error_class: ErrorClass | None = None) -> Failure:
    """Describe an exception so that anybody can read it without its class."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # reason: a broken __str__ must not hide the error
        message = f"(its message cannot be shown: {type(error).__name__}.__str__ fails)"
    message = printable(message)[:MESSAGE_LENGTH]
    return Failure(
        type=type(error).__name__, message=message, error_class=str(error_class or classify(error)), step_id=step_id
    )


def fits(body: bytes, limit: int) -> bytes:
    """Return an encoded result that is not too large, or raise `codec.NotStorable`."""
    if len(body) <= limit:
        return body
    raise codec.NotStorable(
        "$",
        f"{len(body):,} bytes are above the limit of {limit:,} for a result: store it elsewhere, return a reference",
    )
