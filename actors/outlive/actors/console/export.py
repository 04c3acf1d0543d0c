"""``export``: all that is stored of a task, for other programs."""

import click

from outlive.actors.console import output
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.actors.console.session import ask
from outlive.actors.console.steer import task_argument
from outlive.infra.client import Client


@click.command()
@task_argument
@client_options
@pass_given
def export(given: Given, task_id: str) -> None:
    """Write all that is stored of a task: one JSON object a line, whose only key says what it is.

    task, event, step, operation (with tries and words), attempt, word, command (with its answer), audit.
    """
    ask(given, lambda client: _write(client, task_id))


async def _write(client: Client, task_id: str) -> None:
    async for piece in client.export(task_id):
        output.emit(piece)
