"""What a step runs, and what it may know without running anything."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

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
