"""Places of calls: a step's id is where it is called.

A call takes its place when it is made, on the asyncio task that owns its branch, so the same code gives the same step
ids on every run.
"""

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from outlive.protocol import steps


class Misplaced(RuntimeError):
    """A step was called from an asyncio task that the durable function does not own, so it has no stable place."""


@dataclass(slots=True)
class Branch:
    """A line of calls within a durable function: the main one, or one coroutine of a `task.gather`."""

    path: str
    owner: "asyncio.Task[object] | None"
    count: int = 0
    item: str | None = None  # of the plan, to which the steps called next belong


branch: Final[ContextVar[Branch]] = ContextVar("outlive_branch")


class Places:
    """The places of one task's function, given out in the order of its calls."""

    def __init__(self, task_id: str, run: int) -> None:
        """Begin a run of a task."""
        self.run = run
        self.misplaced: Misplaced | None = None  # a step without a stable place was refused
        self._task_id = task_id
        self._chosen: set[str] = set()

    def place(self, chosen: str | None = None) -> str:
        """Take the next place of the current branch and return its step id."""
        if self.misplaced is not None:
            raise self.misplaced
        mine = branch.get(None)
        if mine is None or asyncio.current_task() is not mine.owner:
            raise self._misplace(
                f"a step of task {self._task_id!r} was called from an asyncio task of its own (create_task, "
                "TaskGroup, or a coroutine given to asyncio.gather): its place would differ from run to run. "
                "Write: await task.gather(coroutine, ...)"
            )
        mine.count += 1
        if chosen is None:
            return steps.fit(f"{mine.path}{mine.count}")
        if chosen in self._chosen:
            raise self._misplace(
                f"step_id {chosen!r} was given to two calls of task {self._task_id!r}: one id, one step"
            )
        self._chosen.add(chosen)
        return steps.chosen(chosen, run=self.run)

    @property
    def next_place(self) -> str:
        """The step id that the next call of this branch will get, unless it has a chosen one."""
        mine = branch.get()
        return steps.fit(f"{mine.path}{mine.count + 1}")

    @property
    def item(self) -> str | None:
        """The item of the plan to which a step that is called here belongs."""
        mine = branch.get(None)
        return mine.item if mine is not None else None

    @item.setter
    def item(self, item: str | None) -> None:
        branch.get().item = item

    def _misplace(self, message: str) -> Misplaced:
        """Remember that the code has no stable places: the task cannot succeed, even if nobody looks at the error."""
        self.misplaced = Misplaced(message)
        return self.misplaced

    def next_run(self) -> None:
        """Begin anew: ids begin with the run's number from here on."""
        self.run += 1
        self._chosen.clear()
