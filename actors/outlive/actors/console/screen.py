"""What a watcher sees: a line per event, or JSON objects for programs. The live view is in `bars`."""

from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console

from outlive.actors.console import output
from outlive.infra.reader import Gap, Item
from outlive.protocol.events import StatusEvent
from outlive.protocol.task import Reason, Status, TaskRecord


class Screen(Protocol):
    """Where a watcher looks; a context manager."""

    def __enter__(self) -> Self:
        """Begin."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Leave the last state in view."""
        ...

    def doing(self, what: str) -> None:
        """Tell what takes time just now."""

    def line(self, text: str) -> None:
        """Hand on a line that somebody else wrote."""

    def event(self, task_id: str, item: Item) -> None:
        """Show a progress event."""

    def end(self, task: TaskRecord) -> None:
        """Show how a task ended, or that it waits for a person."""


class JsonScreen:
    """For programs: the events as they come, then the end; one object per line on stdout."""

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left open."""

    def doing(self, what: str) -> None:
        """Say it to whoever reads stderr."""
        output.say(what)

    def line(self, text: str) -> None:
        """Hand it on to stderr."""
        output.say(text)

    def event(self, task_id: str, item: Item) -> None:
        """Write the event, or ``{"type": "gap", ...}`` for events that exist no more."""
        if isinstance(item, Gap):
            output.emit({"type": "gap", "task_id": task_id, "from_seq": item.from_seq, "to_seq": item.to_seq})
        else:
            output.emit(item)

    def end(self, task: TaskRecord) -> None:
        """Write ``{"type": "end", ...}`` with status, result, failure and reasons."""
        last: dict[str, Any] = {"type": "end", "task_id": task.task_id, "status": task.status}
        if task.status is Status.SUCCEEDED:
            last["result"] = task.result
        output.emit(last | ({"failure": task.failure} if task.failure else {}) | {"reasons": task.reasons})


class LineScreen:
    """Without a terminal: a line per event on stderr, the result on stdout."""

    def __init__(self, console: Console | None = None, *, named: bool = False) -> None:
        """Write to a console; with `named` each line says of which task it speaks."""
        self.console = console or output.console(err=True)
        self._named = named

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left open."""

    def doing(self, what: str) -> None:
        """Print a line."""
        self.console.print(what, style="dim")

    def line(self, text: str) -> None:
        """Print it as it is."""
        self.console.out(text, highlight=False)

    def event(self, task_id: str, item: Item) -> None:
        """Print number, time and message."""
        if isinstance(item, Gap):
            self.console.print(self._head(task_id) + gap(item))
            return
        message = item.message.replace("\n", f"\n{'':18}")
        self.console.print(f"{self._head(task_id)}{item.seq:>6}  {item.at:%H:%M:%S}  {message}")
        if isinstance(item, StatusEvent):
            for text in needs(item.reasons):
                self.console.print(f"{'':18}{text}")

    def _head(self, task_id: str) -> str:
        return f"{task_id}  " if self._named else ""

    def end(self, task: TaskRecord) -> None:
        """Print the traceback of a failure to stderr, the result to stdout."""
        if task.failure is not None and task.failure.traceback:
            self.console.print(task.failure.traceback.rstrip(), style="dim")
        if task.status is Status.SUCCEEDED:
            output.result(task.result)


def needs(reasons: list[Reason]) -> list[str]:
    """Return the commands that a person may type."""
    return [f"to go on: {reason.do}" for reason in reasons]


def gap(item: Gap) -> str:
    """Say that history is missing, and how things stand."""
    return (
        f"events {item.from_seq} to {item.to_seq} are kept no more; the task is {item.task.status}, "
        f"{output.count(item.task.done.count, 'step')} done"
    )
