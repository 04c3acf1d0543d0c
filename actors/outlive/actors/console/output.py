"""Where results and words go: results to stdout, what is said to a person to stderr."""

import re
import sys
from datetime import UTC, datetime
from typing import IO, Any, Final, cast

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from outlive.protocol.task import Spending, Status

_BLANKS: Final = re.compile(r" +(?=\n|$)")
_UNCUT: Final = 1000  # columns where nobody looks at a screen
_STYLES: Final = {
    Status.RUNNING: "cyan",
    Status.PAUSED: "yellow",
    Status.SUCCEEDED: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "dim",
}

_CALM: Final = Theme({"bar.complete": "cyan", "bar.finished": "green", "bar.pulse": "cyan", "progress.elapsed": "dim"})


def emit(value: Any) -> None:
    """Write a value as one line of JSON."""
    click.echo(msgspec.json.encode(value))


def result(value: Any) -> None:
    """Write a task's result as JSON: indented on a screen, one line elsewhere."""
    body = msgspec.json.encode(value)
    click.echo(msgspec.json.format(body, indent=2) if sys.stdout.isatty() else body)


def say(text: str) -> None:
    """Tell a person."""
    click.echo(text, err=True)


def console(*, err: bool = False) -> Console:
    """Return a console for results, or for words to a person; lines are cut to fit a screen only."""
    made = Console(stderr=err, highlight=False, markup=False, emoji=False, soft_wrap=True, theme=_CALM)
    if not made.is_terminal:
        made.width = _UNCUT
        made.file = cast("IO[str]", _Trimmed(made.file))
    return made


class _Trimmed:
    """A stream that gets no blanks at the ends of lines, with which tables fill their last column."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(_BLANKS.sub("", text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def table(*columns: str) -> Table:
    """Return a plain table; a column named ``>name`` is aligned to the right, the last one gives way."""
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 3, 0, 0))
    for number, name in enumerate(columns, 1):
        last = number == len(columns)
        made.add_column(
            name.removeprefix(">"), justify="right" if name.startswith(">") else "left", no_wrap=True,
            overflow="ellipsis" if last else "fold", min_width=None if last else len(name),
        )  # fmt: skip
    return made


def fields(rows: dict[str, Any]) -> Table:
    """Return names and values below each other; what is None or empty is left out."""
    made = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows.items():
        if value not in (None, "", [], {}):
            made.add_row(name, value if isinstance(value, Text) else str(value))
    return made


def status(of: Status) -> Text:
    """Return a status in its colour."""
    return Text(str(of), style=_STYLES.get(of, ""))


def age(at: datetime) -> str:
    """Say how long ago something was, by this machine's clock: for reading only."""
    seconds = max((datetime.now(UTC) - at).total_seconds(), 0)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def count(number: int, what: str) -> str:
    """Return ``1 step`` or ``2 steps``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def short(value: Any, longest: int = 100) -> str:
    """Return a value as JSON, cut."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= longest else text[: longest - 3] + "..."


def spending(spent: Spending) -> str:
    """Say what a task's requests to models cost, and what its crashes did not repeat."""
    money = f", {spent.money:.4f} dollars" if spent.unpriced < spent.requests else ""
    parts = [f"{count(spent.requests, 'request')} paid, {spent.tokens:,} tokens{money}"]
    parts += [f"{spent.unpriced} at a price that is not known"] if spent.unpriced else []
    parts += [f"{spent.lost} of a cost that is not known yet (reserved in full)"] if spent.lost else []
    parts += [f"{count(spent.kept, 'recorded answer')} used again by resumes, not paid twice"] if spent.kept else []
    parts += [f"{spent.lent:,} tokens drawn by children"] if spent.lent else []
    if spent.budget is not None:
        limits = msgspec.to_builtins(spent.budget)
        parts.append("budget: " + ", ".join(f"{limit:,} {name}" for name, limit in limits.items()))
    return "; ".join(parts)
