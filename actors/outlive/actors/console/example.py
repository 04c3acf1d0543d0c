"""``example``: an agent that does a real job, with a scripted model or a real one."""

import os
import shlex
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from outlive.actors.console import codes, interrupt, output
from outlive.actors.console.options import Given, by_option, client_options, dsn_option, pass_given
from outlive.actors.console.run import follow_own
from outlive.actors.console.submit import Order

APP: Final = "outlive.actors.examples:app"
_KINDS: Final = {"analyst": "analyst", "contracts": "reviewer", "migration": "migrator"}


@click.command()
@click.argument("name", type=click.Choice(list(_KINDS)))
@click.argument(
    "folder", required=False, type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path)
)
@click.option(
    "--model", metavar="NAME", help="A model of pydantic-ai, for instance openai:gpt-5; else a script decides."
)
@click.option("--goal", metavar="TEXT", help="Another goal; a script knows only its own.")
@click.option("--budget", metavar="LIMIT=NUMBER,...", help="What it may spend: tokens=10000,money=0.50,steps=100.")
@click.option("--task-id", metavar="ID", help="An id of your own: run again, it goes on.")
@by_option
@client_options
@dsn_option
@pass_given
def example(
    given: Given,
    name: str,
    folder: Path | None,
    model: str | None,
    goal: str | None,
    budget: str | None,
    task_id: str | None,
    by: str,
) -> int:
    """Let an agent do a real job in FOLDER, with all it needs.

    analyst reads a code base and writes analysis.md; contracts reviews text files (samples, if no FOLDER is named) and asks
    what they leave open; migration replaces datetime.utcnow() in Python files, each after your yes to its diff.
    Answer in a second terminal, in the same folder.
    """
    kind, own_goal = _prepare(name, folder, model)
    task_input = msgspec.json.encode({"goal": goal or own_goal}).decode()
    order = Order.read(kind, (), task_input, task_id, 0, [f"example={name}"], budget=budget)
    code = interrupt.run(lambda asked: follow_own(given, APP, by, order, asked))
    if code not in (codes.DONE, codes.FAILED):
        words: list[Any] = ["outlive", "example", name, *([folder] if folder else []), "--task-id", order.task_id]
        words += ["--model", model] if model else []
        words += ["--goal", goal] if goal else []
        where = ", in a terminal, where it waits for your answer" if code == codes.PERSON else ""
        output.say(f"it is kept. To go on{where}: {shlex.join(map(str, words))}")
    return code


def _prepare(name: str, folder: Path | None, model: str | None) -> tuple[str, str]:
    """Tell the worker, by its environment, where it works and with what; return the kind and its goal."""
    from outlive.actors.examples import analyst, contracts, migration  # noqa: PLC0415  # they need an extra
    from outlive.actors.examples.folder import FOLDER  # noqa: PLC0415  # the same
    from outlive.actors.examples.models import MODEL  # noqa: PLC0415  # the same

    where = folder or (contracts.SAMPLES if name == "contracts" else Path.cwd())
    os.environ[FOLDER] = str(where)
    if model:
        os.environ[MODEL] = model
    goals = {"analyst": analyst.GOAL, "contracts": contracts.GOAL, "migration": migration.GOAL}
    return _KINDS[name], goals[name]
