"""``chaos explore``: a task of the user's, killed at every point that it passes."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from outlive.actors.chaoskit.explorer import SECONDS, Report
from outlive.actors.chaoskit.explorer import explore as explore_task
from outlive.actors.chaoskit.forks import ForkFailed
from outlive.actors.chaoskit.lane import ANSWER, NotExplorable
from outlive.actors.chaoskit.points import Point
from outlive.actors.console import apps, arguments, codes, interrupt, output
from outlive.actors.console.options import Given, json_option, pass_given
from outlive.actors.testing import server

_EVERY: Final = 50
"""Points between two lines that say how far it is."""


@click.command()
@click.argument("app")
@click.argument("kind")
@click.argument("words", nargs=-1, metavar="[KEY=TEXT|KEY:=JSON]...")
@click.option("--input", "-i", "whole", metavar="JSON|@FILE|-", help="The input as one JSON object.")
@click.option(
    "--count", metavar="MODULE:FUNCTION", help="What happened in the world, by name; asked before and after each run."
)
@click.option("--points", type=click.IntRange(1), metavar="N", help="Try at most so many points.  [default: all]")
@click.option(
    "--seconds", type=click.FloatRange(0), default=SECONDS, show_default=True, help="Begin no run after these."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the order in which points are tried.")
@click.option(
    "--only", "only", multiple=True, metavar="POINT", help="Only this point, as a report names it; repeatable."
)
@click.option("--yes/--no", default=True, show_default=True, help="What approvals are answered with.")
@click.option("--answer", default=ANSWER, show_default=True, help="To questions without choices.")
@click.option("--signal", "signals", multiple=True, metavar="NAME=JSON", help="Sent to each run; repeatable.")
@click.option("--lanes", type=click.IntRange(1), metavar="N", help="Runs side by side.")
@json_option
@pass_given
def explore(
    given: Given,
    /,
    app: str,
    kind: str,
    words: Sequence[str],
    whole: str | None,
    count: str | None,
    only: Sequence[str],
    signals: Sequence[str],
    **options: Any,
) -> int:
    """Run a task once per point at which its worker may die, killed there, and compare.

    APP is module:name. In turn the worker is killed (SIGKILL), a tool's answer is lost, the submit comes twice, and the worker
    is frozen for longer than its lease. The tools are really called: give inputs that may be used hundreds of times.
    {trial} in a text of the input becomes the name of the run. Servers are started for it, and thrown away.
    """
    apps.find(app)
    task_input = arguments.task_input(whole, words)
    chosen: dict[str, Any] = {
        "count": None if count is None else _function(count),
        "only": [_point(text) for text in only],
        "signals": [_signal(text) for text in signals],
        "said": None if given.as_json else _say,
    }
    report = None

    async def exploring(_: interrupt.Interrupt) -> int:
        nonlocal report
        async with server(backend="embedded") as own:
            report = await explore_task(app, kind, task_input, on=own, **chosen, **options)
        return codes.DONE if report.ok else codes.FAILED

    try:
        code = interrupt.run(exploring)
    except (ForkFailed, NotExplorable) as error:
        raise click.ClickException(str(error)) from None
    if report is not None:
        _tell(report, as_json=given.as_json)
    return code


def _tell(report: Report, *, as_json: bool) -> None:
    if as_json:
        output.emit(report.json)
    else:
        click.echo(report.text)


def _say(tried: int, points: int, found: int) -> None:
    if tried % _EVERY == 0:
        output.say(f"{tried} of {points} points, {found} violations")


def _function(spec: str) -> Callable[..., Any]:
    module, _, name = spec.partition(":")
    apps.find(spec)
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise click.UsageError(f"--count {spec}: there is no such function. Write module:function")
    return function  # type: ignore[no-any-return]  # of a user's module


def _point(text: str) -> Point:
    try:
        return Point.read(text)
    except ValueError as error:
        raise click.UsageError(f"--only {error}") from None


def _signal(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise click.UsageError(f"--signal {text}: write NAME=JSON")
    return name, arguments.json_value(value, f"the value of {name}")
