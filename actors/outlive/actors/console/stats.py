"""``stats``: how the tools fared, so that an unstable service is told from bad arguments."""

import re
from typing import Any, Final

import click

from outlive.actors.console import output
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.actors.console.session import ask
from outlive.protocol.api import StatsPage, ToolStats

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Span(click.ParamType[float]):
    """A time span like ``90s``, ``15m``, ``24h``, ``7d``; the value is in seconds."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        if isinstance(value, float):
            return value
        if (found := re.fullmatch(r"(\d{1,6})([smhd])", str(value))) is None:
            self.fail(f"{value!r} is no time span. Write 90s, 15m, 24h or 7d.", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


@click.command()
@click.option("--kind", "-k", metavar="KIND", help="Only tasks of this kind.")
@click.option(
    "--since", type=Span(), metavar="SPAN", default="24h", show_default=True,
    help="Only tasks created within it: 90s, 15m, 24h, 7d.",
)  # fmt: skip
@client_options
@pass_given
def stats(given: Given, kind: str | None, since: float) -> None:
    """Show how each tool fared: calls, attempts, ends, waits, and the share of attempts that each class of error took.

    Many `unavailable` or `timeout` speak of an unstable service, many `invalid_arguments` of whoever makes them.
    """
    page = ask(given, lambda client: client.stats(kind=kind, within=since))
    if given.as_json:
        output.emit(page)
        return
    if page.tools:
        _show(page)
    output.say(f"{output.count(page.tasks, 'task')} created in that time")


def _show(page: StatsPage) -> None:
    table = output.table(
        "TOOL", ">CALLS", ">WELL", ">FAILED", ">UNKNOWN", ">OPEN", ">ATTEMPTS", ">WAITED", ">LONGEST", "ERRORS"
    )
    for tool in page.tools:
        table.add_row(
            tool.name, str(tool.calls), str(tool.succeeded), str(tool.failed), str(tool.unknown), str(tool.open),
            str(tool.attempts), f"{tool.waited:.1f} s", f"{tool.longest_wait:.1f} s", _shares(tool),
        )  # fmt: skip
    output.console().print(table, soft_wrap=False)


def _shares(tool: ToolStats) -> str:
    worst_first = sorted(tool.errors.items(), key=lambda item: (-item[1], item[0]))
    of = max(tool.attempts, 1)
    return ", ".join(f"{name.replace('_', ' ')} {count} ({count / of:.0%})" for name, count in worst_first)
