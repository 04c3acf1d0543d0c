"""``replay``: does today's code still follow what tasks did before? Needs no servers, calls no tool."""

import asyncio
from pathlib import Path

import click

from outlive.actors.app import App
from outlive.actors.console import apps, codes, output
from outlive.actors.console.options import Given, json_option, pass_given
from outlive.actors.replay import Different, Replayed, Unreadable
from outlive.actors.replay import replay as follow


@click.command()
@click.argument("app", metavar="APP")
@click.argument(
    "files", metavar="FILE...", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@json_option
@pass_given
def replay(given: Given, app: str, files: tuple[Path, ...]) -> int:
    """Run exported tasks through today's code, before it is deployed.

    APP is module:name. FILE is what 'outlive export TASK' wrote. No tool is called: recorded results answer. Exits with
    1 where the code takes another way, and says at which step; also where a file cannot be replayed, and says why.
    """
    loaded = apps.load(app)
    outcomes = [(file, asyncio.run(_follow(loaded, file))) for file in files]
    for file, outcome in outcomes:
        _tell(file, outcome, as_json=given.as_json)
    return codes.DONE if all(isinstance(outcome, Replayed) for _, outcome in outcomes) else codes.FAILED


async def _follow(app: App, file: Path) -> Replayed | Different | Unreadable:
    try:
        return await follow(app, file)
    except (Different, Unreadable) as problem:
        return problem


def _tell(file: Path, outcome: Replayed | Different | Unreadable, *, as_json: bool) -> None:
    match outcome:
        case Replayed():
            more = outcome._asdict()
            till = "to its end" if outcome.ended else "as far as it got"
            line = f"{outcome.kind} followed {till}, {output.count(outcome.steps, 'step')}"
        case _:
            more = {"different": isinstance(outcome, Different), "message": str(outcome)}
            line = str(outcome)
    if as_json:
        output.emit({"file": str(file), "ok": isinstance(outcome, Replayed), **more})
    else:
        click.echo(f"{file}: {line}")
