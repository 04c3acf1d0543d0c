"""What a step runs, and what it may know without running anything."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from outlive.actors.failures import printable
from outlive.protocol.operations import Outcome

R_co = TypeVar("R_co", covariant=True)


class Runnable(Protocol):
    """A function of a user: a tool, its reconciler, its preview."""

    @property
    def fn(self) -> Callable[..., Any]:
        """As written."""
        ...

    @property
    def is_async(self) -> bool:
        """True when it returns an awaitable."""
        ...

    @property
    def takes_operation(self) -> bool:
        """True when it wants an `Operation` first."""
        ...


class Known(Protocol[R_co]):
    """A result that is known without a call."""

    @property
    def value(self) -> R_co:
        """The result."""
        ...


def checked(outcome: Any) -> Outcome[Any]:
    """Return what a reconciler found, its reason as a text that can be stored. Raises `TypeError` where it is none."""
    if not isinstance(outcome, Outcome):
        raise TypeError(f"it returned {outcome!r}, not an Outcome")
    found: Outcome[Any] = outcome
    return msgspec.structs.replace(found, reason=printable(found.reason))
