"""What the demo shows: a live view in a terminal, plain lines without one, JSON objects for programs."""

import sys
from typing import Any, Final, Protocol, Self, TextIO

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table

from outlive.infra.reader import Item
from outlive.protocol.events import NoteEvent

TENTHS: Final = 10


class Crash(msgspec.Struct, frozen=True, kw_only=True, tag="crash"):
    """What was measured around the SIGKILL.

    Attributes:
        killed: process id of the worker that ran the task; ``successor`` of the one that went on.
        at: packages done when it was killed, of ``total``.
        after: seconds from the kill to the arrival of the successor's first event.
        kept: packages whose result was used, not read again.
        repeated: packages read again (a read-only step); ``resent``: tickets sent again with the same key.
    """

    killed: int
    successor: int
    at: int
    total: int
    after: float
    kept: int
    repeated: int
    resent: int

    def __str__(self) -> str:
        """Return the sentence for people."""
        again = f"{self.repeated} read again"
        if self.resent:
            again += f", {self.resent} ticket sent again with the same key"
        return (
            f"worker {self.killed} killed at {self.at} of {self.total}; worker {self.successor} took over "
            f"after {self.after:.2f} s; {self.kept} packages kept, {again}"
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the end table: what Outlive says, what was counted without asking it (None: nobody else can), and where."""

    what: str
    said: int
    counted: int | None
    where: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The end of the demo; ``ok`` when every count outside Outlive agrees with what it says; ``kept``: state folder."""

    ok: bool
    seconds: float
    rows: list[Row]
    reports: list[str]
    kept: str | None = None


class Screen(Protocol):
    """Where the demo tells what happens."""

    def doing(self, what: str) -> None:
        """Tell what takes time just now."""

    def event(self, event: Item) -> None:
        """Show a progress event of the task."""

    def crash(self, crash: Crash) -> None:
        """Show what a kill cost."""

    def end(self, end: End) -> None:
        """Show the result."""


class PeopleScreen:
    """For people: a bar that moves where there is a terminal, else a line for every tenth."""

    def __init__(self, console: Console) -> None:
        """Draw on a console; use as a context manager."""
        self._console = console
        self._tenth = 0
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn())
        self._progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self._bar: TaskID | None = None

    def __enter__(self) -> Self:
        """Begin to draw."""
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()

    def doing(self, what: str) -> None:
        """Print a dim line."""
        self._console.print(what, style="dim", highlight=False)

    def event(self, event: Item) -> None:
        """Move the bar when the task says how far it is."""
        if isinstance(event, NoteEvent) and event.done is not None and event.total:
            self._move(event.message, event.done, event.total)

    def _move(self, message: str, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self._progress.add_task(message, total=total)
        self._progress.update(self._bar, description=message, completed=done, total=total)
        tenth = done * TENTHS // total
        if tenth > self._tenth and not self._console.is_terminal:
            self._console.print(message, highlight=False)
        self._tenth = tenth

    def crash(self, crash: Crash) -> None:
        """Print the sentence where it cannot be overlooked."""
        self._console.print(str(crash), style="bold red", highlight=False, soft_wrap=True)

    def end(self, end: End) -> None:
        """Print the table and where the reports lie."""
        self._progress.stop()
        table = Table(title=f"licence audit, done in {end.seconds:.1f} s")
        table.add_column("")
        table.add_column("Outlive says", justify="right")
        table.add_column("counted outside", justify="right")
        table.add_column("where", style="dim")
        for row in end.rows:
            table.add_row(row.what, str(row.said), "" if row.counted is None else str(row.counted), row.where)
        self._console.print(table)
        for path in end.reports:
            self._console.print(path, highlight=False, soft_wrap=True)
        if end.kept:
            hint = f"kept: OUTLIVE_STATE_DIR={end.kept} outlive up, then in another terminal the same with list, show"
            self._console.print(hint, style="dim", highlight=False, soft_wrap=True)
        verdict = (
            "the counts agree" if end.ok else "the counts do not agree: this is a bug of Outlive, please report it"
        )
        self._console.print(verdict, style="bold green" if end.ok else "bold red", highlight=False)


class JsonScreen:
    """For programs: one JSON object per line, nothing else."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        """Write to a text stream."""
        self._out = out

    def doing(self, what: str) -> None:
        """Write ``{"type": "doing", ...}``."""
        self._line({"type": "doing", "message": what})

    def event(self, event: Item) -> None:
        """Write the event as it came."""
        self._line(event)

    def crash(self, crash: Crash) -> None:
        """Write ``{"type": "crash", ...}``."""
        self._line(crash)

    def end(self, end: End) -> None:
        """Write ``{"type": "end", ...}``."""
        self._line(end)

    def _line(self, value: Any) -> None:
        self._out.write(msgspec.json.encode(value).decode() + "\n")
        self._out.flush()
