"""The live view in a terminal: a bar per task, and above the bars what a person should not miss."""

from typing import Any, Final, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Task as Bar
from rich.table import Column
from rich.text import Text

from outlive.actors.console import output
from outlive.actors.console.screen import JsonScreen, LineScreen, Screen, gap, needs
from outlive.infra.reader import Gap, Item
from outlive.protocol.events import (
    ApprovalEvent,
    CommandEvent,
    NoteEvent,
    PlanEvent,
    ResumedEvent,
    StatusEvent,
    StepEvent,
)
from outlive.protocol.task import FINAL, Status, TaskRecord

_COLOURS: Final = {
    Status.PAUSED: "yellow",
    Status.SUCCEEDED: "green",
    Status.FAILED: "bold red",
    Status.CANCELLED: "yellow",
}


class BarScreen(LineScreen):
    """In a terminal: a bar per task, and above the bars a line for what a person should not miss."""

    def __init__(self, console: Console | None = None, *, named: bool = False) -> None:
        """Draw on a console; with `named` each bar says of which task it speaks."""
        super().__init__(console, named=named)
        self._progress = Progress(
            SpinnerColumn(finished_text=" "),
            _Message(),
            BarColumn(),
            _Count(),
            TimeElapsedColumn(),
            console=self.console,
        )
        self._bars: dict[str, TaskID] = {}
        self._steps: dict[str, int] = {}
        self._ended: list[TaskRecord] = []
        self._notes: set[str] = set()  # tasks that say themselves how far they are
        self._measured: set[str] = set()  # of those, with numbers
        self._plans: dict[str, PlanEvent] = {}

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen, and under it how the tasks ended."""
        self._progress.stop()
        for task in self._ended:
            super().end(task)

    def end(self, task: TaskRecord) -> None:
        """Keep it until the bars stand still: both may be the same terminal."""
        self._ended.append(task)

    def event(self, task_id: str, item: Item) -> None:
        """Move the task's bar; print a line if it matters."""
        if task_id not in self._bars:
            self._bars[task_id] = self._progress.add_task("", total=None, named=self._named, task_id=task_id)
            self._steps[task_id] = 0
        match item:
            case Gap():
                self._say(task_id, gap(item), "dim")
                self._steps[task_id] = item.task.done.count
            case NoteEvent():
                self._at(task_id, item.item)
                self._note(task_id, item)
            case StepEvent(status="completed"):
                self._at(task_id, item.item)
                self._step(task_id, item)
            case PlanEvent():
                self._plans[task_id] = item
                self._say(task_id, item.message, "dim")
            case _:
                self._tell(task_id, item)

    def _at(self, task_id: str, item: str | None) -> None:
        """Move the bar to an item of the plan, unless the task says itself how far it is."""
        items = [each.id for each in self._plans[task_id].items] if task_id in self._plans else []
        if item in items and task_id not in self._measured:
            self._move(task_id, completed=items.index(item), total=len(items), measured=True)

    def _note(self, task_id: str, note: NoteEvent) -> None:
        if note.item is None or note.done is not None:
            self._notes.add(task_id)
        self._move(task_id, description=note.message)
        if note.done is not None and note.total:
            self._measured.add(task_id)
            self._move(task_id, completed=note.done, total=note.total, measured=True)

    def _step(self, task_id: str, step: StepEvent) -> None:
        self._steps[task_id] += 1
        if task_id not in self._notes:
            self._move(task_id, description=step.message)
        self._move(task_id, steps=self._steps[task_id])

    def _tell(self, task_id: str, item: Any) -> None:
        match item:
            case StatusEvent(status=status) if status in FINAL:
                self._say(task_id, item.message, _COLOURS[status])
                self._finish(task_id, status)
            case StatusEvent(status=Status.PAUSED):
                self._say(task_id, "\n    ".join((item.message, *needs(item.reasons))), "yellow")
                self._move(task_id, description="paused")
            case StatusEvent():
                self._move(task_id, description=item.message)
            case StepEvent(status="failed" | "unknown"):
                self._say(task_id, item.message, "red")
            case StepEvent():
                self._move(task_id, description=item.message)
            case ResumedEvent():
                self._say(task_id, item.message, "bold cyan")
            case ApprovalEvent() | CommandEvent():
                self._say(task_id, item.message, "dim")
            case _:
                self._say(task_id, item.message, "")

    def _move(self, task_id: str, **state: Any) -> None:
        self._progress.update(self._bars[task_id], **state)

    def _finish(self, task_id: str, status: Status) -> None:
        if status is not Status.SUCCEEDED:
            self._progress.remove_task(self._bars.pop(task_id))
            return
        total = next(bar.total for bar in self._progress.tasks if bar.id == self._bars[task_id]) or 1
        self._move(task_id, completed=total, total=total)

    def _say(self, task_id: str, text: str, style: str) -> None:
        self.console.print(Text.assemble((self._head(task_id), "dim"), (text, style)))


class _Message(ProgressColumn):
    """The last message, on one line."""

    def get_table_column(self) -> Column:
        """Return its column: cut, not folded."""
        return Column(no_wrap=True, overflow="ellipsis")

    def render(self, task: Bar) -> Text:
        """Return it, with the task's id where there are several."""
        named = f"{task.fields['task_id'][-8:]}  " if task.fields.get("named") else ""
        return Text.assemble((named, "dim"), task.description.splitlines()[0] if task.description else "")


class _Count(TextColumn):
    """How far: the task's own numbers, else its steps."""

    def __init__(self) -> None:
        """Keep as little room as it needs."""
        super().__init__("")

    def render(self, task: Bar) -> Text:
        """Return ``done/total``, or the number of steps."""
        if task.fields.get("measured"):
            return Text(f"{task.completed:.0f}/{task.total:.0f}", style="dim")
        return Text(output.count(task.fields.get("steps", 0), "step"), style="dim")


def choose(*, as_json: bool, named: bool = False) -> Screen:
    """Return the screen that fits to who is looking."""
    if as_json:
        return JsonScreen()
    console = output.console(err=True)
    return BarScreen(console, named=named) if console.is_terminal else LineScreen(console, named=named)
