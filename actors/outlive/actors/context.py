"""Which task the running code belongs to."""

from contextvars import ContextVar
from typing import NamedTuple, Protocol


class TaskContext(Protocol):
    """What is known about the task whose code runs: enough for messages and logs."""

    @property
    def kind(self) -> str:
        """The name of its kind."""
        ...

    @property
    def task_id(self) -> str:
        """Its id."""
        ...

    @property
    def tenant(self) -> str:
        """Its tenant."""
        ...


current: ContextVar[TaskContext | None] = ContextVar("outlive_task", default=None)
"""The task whose function runs here. The actor sets it around the function and clears it around tools."""


class Caller(Protocol):
    """The step on whose behalf a tool, or one of its companions, runs."""

    @property
    def on_behalf(self) -> "Cause":
        """What is told of it."""
        ...


class Cause(NamedTuple):
    """Why code of a tool runs: which task, step and attempt, in which worker."""

    task_id: str
    step_id: str
    tool: str
    """Its name."""
    function: str
    """What of it runs: the tool itself (its name again), or the name of its reconciler, preview ..."""
    key: str
    """Of the operation (what ``op.key`` is); read-only steps have one, too."""
    attempt: int
    worker: str
    """The incarnation of the worker."""
    declared: str
    """``read_only``, ``idempotent`` or ``effect``; companions are declared to change nothing: ``read_only``."""


calling: ContextVar[tuple[Caller, str] | None] = ContextVar("outlive_calling", default=None)
"""The step whose tool runs here, and which function of it; set around tools, also in their threads."""


def cause() -> Cause | None:
    """Tell on whose behalf this code of a tool runs; None outside of tools."""
    if (found := calling.get()) is None:
        return None
    step, function = found
    known = step.on_behalf
    return known if function == known.tool else known._replace(function=function, declared="read_only")
