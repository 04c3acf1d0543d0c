"""Which task the running code belongs to."""

from contextvars import ContextVar
from typing import Protocol


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
