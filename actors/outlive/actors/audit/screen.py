"""What the demo shows: a live view in a terminal, plain lines without one, JSON objects for programs."""

import contextlib
import sys
from collections.abc import Generator
from typing import Any, ClassVar, Final, Protocol, Self, TextIO

import anyio
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn
from rich.table import Table

from outlive.infra.reader import Item
from outlive.protocol.events import NoteEvent

TENTHS: Final = 10


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, as one sentence (``str()``) and as one JSON object."""

    style: ClassVar[str] = ""


class Crash(Told, frozen=True, kw_only=True, tag="crash"):
    """What was measured around a SIGKILL.

    Attributes:
        killed: process id of the worker that ran the task; ``successor`` of the one that went on.
        at: where the task was.
        after: seconds from the kill to the arrival of the successor's first event.
        kept: steps whose stored result was used.
        repeated: packages that were read again.
    """

    style: ClassVar[str] = "bold red"
    killed: int
    successor: int
    at: str
    after: float
    kept: int
    repeated: int

    def __str__(self) -> str:
        """Return the sentence for people."""
        again = f"{self.repeated} repeated (read-only)" if self.repeated else "none repeated"
        return (
            f"worker {self.killed} killed {self.at}; worker {self.successor} took over after {self.after:.2f} s: "
            f"{self.kept} steps kept, {again}"
        )


class Found(Told, frozen=True, kw_only=True, tag="found"):
    """An effect whose answer was lost with its worker, and which was found instead of being sent again."""

    style: ClassVar[str] = "bold yellow"
    tool: str
    ticket: int

    def __str__(self) -> str:
        """Return the sentence for people."""
        return f"{self.tool}: unknown. Asked the tracker: ticket {self.ticket} exists. Not sent again."


class Question(Told, frozen=True, kw_only=True, tag="question"):
    """An effect that waits for a person, with what it would do."""

    style: ClassVar[str] = "bold cyan"
    message: str

    def __str__(self) -> str:
        """Return the sentence for people."""
        return self.message


class Answered(Told, frozen=True, kw_only=True, tag="answered"):
    """What became of the question, in Outlive's words."""

    message: str

    def __str__(self) -> str:
        """Return the sentence for people."""
        return self.message


class Unanswered(Told, frozen=True, kw_only=True, tag="unanswered"):
    """Nobody is there to be asked; the commands with which somebody may go on."""

    commands: list[str]
    kept: bool

    def __str__(self) -> str:
        """Return the sentence for people."""
        if self.kept:
            return "\n  ".join(["nobody answers here; the task waits. To go on, in two terminals:", *self.commands])
        return (
            f"nobody answers here; in a terminal you are asked, --yes answers for you. The command is\n"
            f"  {self.commands[-1]}\nand needs the servers, which end now; --keep keeps what they know"
        )


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the end table: what is said, what was counted without asking (None: nobody else can), and where."""

    what: str
    said: int
    counted: int | None
    where: str


class End(msgspec.Struct, frozen=True, kw_only=True, tag="end"):
    """The end of the demo.

    Attributes:
        ok: all went as it should; `verdict` says it in words.
        who: whose word the first column is.
        seconds: without the time that a person took to answer.
        kept: the folder of the servers' data, if it stays.
    """

    ok: bool
    verdict: str
    title: str = "licence audit"
    who: str = "Outlive says"
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

    def moved(self, message: str, done: int, total: int) -> None:
        """Show how far something is that is no task."""

    def tell(self, told: Told) -> None:
        """Show what happened."""

    async def ask(self, question: str) -> bool | None:
        """Have a person say yes or no; None: nobody is there."""
        ...

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
        self._print(what, style="dim")

    def event(self, event: Item) -> None:
        """Move the bar when the task says how far it is."""
        if isinstance(event, NoteEvent) and event.done is not None and event.total:
            self.moved(event.message, event.done, event.total)

    def moved(self, message: str, done: int, total: int) -> None:
        """Move the bar; a count that begins anew gets a bar of its own."""
        if self._bar is None or done == 1:
            self._bar, self._tenth = self._progress.add_task(message, total=total), 0
        self._progress.update(self._bar, description=message, completed=done, total=total)
        tenth = done * TENTHS // total
        if tenth > self._tenth and not self._console.is_terminal:
            self._print(message)
        self._tenth = tenth

    def tell(self, told: Told) -> None:
        """Print the sentence where it cannot be overlooked; a question comes last, below the bars."""
        if isinstance(told, Question):
            self._progress.stop()
        terminal = self._console.is_terminal
        self._console.print(str(told), style=told.style, highlight=False, soft_wrap=not terminal, markup=False)

    async def ask(self, question: str) -> bool | None:
        """Ask where there is a terminal."""
        if not (self._console.is_terminal and sys.stdin.isatty()):
            return None
        while True:
            self._console.print(f"{question} [y/n] ", style="bold", end="", markup=False, highlight=False)
            await anyio.wait_readable(sys.stdin)  # a terminal hands over whole lines
            line = sys.stdin.readline()
            if not line:
                return None
            if (word := line.strip().lower()) in {"y", "yes", "n", "no"}:
                return word.startswith("y")

    def end(self, end: End) -> None:
        """Print the table and where the reports lie."""
        self._progress.stop()
        table = Table(title=f"{end.title}, done in {end.seconds:.1f} s")
        table.add_column("")
        table.add_column(end.who, justify="right")
        table.add_column("counted outside", justify="right")
        table.add_column("where", style="dim")
        for row in end.rows:
            table.add_row(row.what, str(row.said), "" if row.counted is None else str(row.counted), row.where)
        self._console.print(table)
        for path in end.reports:
            self._print(path)
        if end.kept:
            self._print(
                f"kept: OUTLIVE_STATE_DIR={end.kept} outlive up, then in another terminal the same with list, show",
                style="dim",
            )
        self._print(end.verdict, style="bold green" if end.ok else "bold red")

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text, style=style, highlight=False, soft_wrap=True, markup=False)


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

    def moved(self, message: str, done: int, total: int) -> None:
        """Write ``{"type": "moved", ...}``."""
        self._line({"type": "moved", "message": message, "done": done, "total": total})

    def tell(self, told: Told) -> None:
        """Write ``{"type": "crash", ...}``, found, question, answered or unanswered."""
        self._line(told)

    async def ask(self, question: str) -> bool | None:  # noqa: ARG002  # see Screen
        """Ask nobody."""
        return None

    def end(self, end: End) -> None:
        """Write ``{"type": "end", ...}``."""
        self._line(end)

    def _line(self, value: Any) -> None:
        self._out.write(msgspec.json.encode(value).decode() + "\n")
        self._out.flush()


@contextlib.contextmanager
def choose(*, as_json: bool) -> Generator[Screen]:
    """Yield the screen that fits."""
    if as_json:
        yield JsonScreen()
        return
    with PeopleScreen(Console()) as screen:
        yield screen
