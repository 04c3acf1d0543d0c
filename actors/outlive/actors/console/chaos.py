"""``chaos``: breaking what was started to be broken (``--chaos``), the exam, and the explorer, to see what happens."""

import asyncio
from collections.abc import Awaitable, Callable

import click

from outlive.actors.chaos import Kill, Killed
from outlive.actors.chaos.control import Control, NotBroken
from outlive.actors.console import breaking, output
from outlive.actors.console.exam import exam
from outlive.actors.console.explore import explore
from outlive.actors.console.held import find_owner, find_worker
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.actors.console.schedule import run
from outlive.actors.console.soak import soak
from outlive.infra import embedded
from outlive.infra.client import Client


class WholeLines(click.Group):
    """A group whose help cuts no command's line short."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write each command with the first paragraph of its help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.commands[name].get_short_help_str(1000)) for name in sorted(self.commands)])


@click.group(cls=WholeLines)
def chaos() -> None:
    """Break things, to see what happens: kill, freeze, cut, explore, soak.

    Faults end by themselves after a time, or with 'outlive chaos calm'. Only workers started with --chaos can be broken.
    """


for _command in (exam, explore, run, soak, *breaking.COMMANDS):
    chaos.add_command(_command)


@chaos.group()
def kill() -> None:
    """Kill a worker or an actor; only workers started with --chaos let that happen."""


@kill.command()
@click.argument("which", required=False, metavar="[TASK|INCARNATION|PID]")
@client_options
@pass_given
def worker(given: Given, which: str | None) -> None:
    """SIGKILL a worker.

    The one that holds a task, the one named, or else the one with most running tasks.
    """

    async def find(client: Client) -> Kill:
        return Kill(incarnation=await find_worker(client, which))

    _kill(given, find)


@kill.command()
@click.argument("task_id", metavar="TASK")
@client_options
@pass_given
def actor(given: Given, task_id: str) -> None:
    """Kill the actor of a task.

    Its worker lives on and starts it again from the last checkpoint.
    """

    async def find(client: Client) -> Kill:
        return Kill(incarnation=await find_owner(client, task_id), task_id=task_id)

    _kill(given, find)


def _kill(given: Given, find: Callable[[Client], Awaitable[Kill]]) -> None:
    killed = asyncio.run(_killing(given, find))
    if not killed.ok:
        raise click.ClickException(f"{killed.message}; it may just be moving: try again")
    if given.as_json:
        output.emit(killed)
    else:
        click.echo(killed.message)


async def _killing(given: Given, find: Callable[[Client], Awaitable[Kill]]) -> Killed:
    settings = embedded.locate(given.settings())
    async with Control(settings) as control, Client(settings) as client:
        kill = await find(client)
        try:
            return await control.kill(kill.incarnation, kill.task_id)
        except NotBroken as error:
            raise click.ClickException(str(error)) from None
