"""``pause``, ``resume``, ``cancel``, ``signal``: commands to a living task."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import click

from outlive.actors.console import arguments, output
from outlive.actors.console.options import Given, by_option, client_options, pass_given
from outlive.actors.console.session import ask
from outlive.infra.client import Client
from outlive.protocol.answers import Answer

task_argument: Final = click.argument("task_id", metavar="TASK")
reason_option: Final = click.option("--reason", "-r", metavar="TEXT", help="Kept with the task, for people.")


def send(given: Given, by: str, command: Callable[[Client], Awaitable[Answer]]) -> None:
    """Send a command and show its answer."""
    answer = ask(given, command, by=by)
    if given.as_json:
        output.emit(answer)
    else:
        click.echo(answer.message)


@click.command()
@task_argument
@reason_option
@by_option
@client_options
@pass_given
def pause(given: Given, task_id: str, reason: str | None, by: str) -> None:
    """Stop a task before its next step; an operation in flight ends first."""
    send(given, by, lambda client: client.pause(task_id, reason))


@click.command()
@task_argument
@click.option(
    "--raise-budget", metavar="LIMIT=NUMBER,...", help="New limits of a used budget: tokens, money, steps, seconds."
)
@by_option
@client_options
@pass_given
def resume(given: Given, task_id: str, raise_budget: str | None, by: str) -> None:
    """Take a pause back."""
    raised = None if raise_budget is None else arguments.budget(raise_budget)
    send(given, by, lambda client: client.resume(task_id, raise_budget=raised))


@click.command()
@task_argument
@reason_option
@click.option(
    "--compensate/--no-compensate",
    default=None,
    help="Then undo what it did, newest first, by its tools' compensators; or stop undoing.",
)
@by_option
@client_options
@pass_given
def cancel(given: Given, task_id: str, reason: str | None, compensate: bool | None, by: str) -> None:  # a flag
    """Let a task start nothing more. Its last event lists what had happened, and what of it was undone."""
    send(given, by, lambda client: client.cancel(task_id, reason, compensate=compensate))


@click.command()
@task_argument
@click.argument("name")
@click.argument("value", nargs=-1)
@by_option
@client_options
@pass_given
def signal(given: Given, task_id: str, name: str, value: Sequence[str], by: str) -> None:
    """Hand a value to a task that waits for it, now or later.

    VALUE is one JSON value (what is no JSON is text), or key=text and key:=json for an object; without it null.
    """
    sent = arguments.value(value)
    send(given, by, lambda client: client.signal(task_id, name, sent))
