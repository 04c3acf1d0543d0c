"""``chaos``: breaking what was started to be broken (``--chaos``), the exam, and the explorer, to see what happens."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import click
import msgspec

from outlive.actors.chaos import KILL, Kill, Killed
from outlive.actors.console import output
from outlive.actors.console.exam import exam
from outlive.actors.console.explore import explore
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.infra import embedded
from outlive.infra.bus import Bus, NoResponders, RequestTimeout
from outlive.infra.client import Client
from outlive.protocol import api
from outlive.protocol.api import WorkerRecord
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import Status, TaskRecord

_PATIENCE: Final = 2.0


@click.group()
def chaos() -> None:
    """Break things, to see what happens: kill, explore, exam."""


chaos.add_command(exam)
chaos.add_command(explore)


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
    _kill(given, lambda client: _find_worker(client, which))


@kill.command()
@click.argument("task_id", metavar="TASK")
@client_options
@pass_given
def actor(given: Given, task_id: str) -> None:
    """Kill the actor of a task.

    Its worker lives on and starts it again from the last checkpoint.
    """

    async def find(client: Client) -> Kill:
        return Kill(incarnation=await _owner(client, task_id), task_id=task_id)

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
    async with Bus.of(settings, name="outlive chaos") as bus, Client(settings, bus=bus) as client:
        kill = await find(client)
        subject = Subjects(settings.prefix).chaos(settings.tenant, KILL)
        try:
            reply = await bus.request(subject, msgspec.json.encode(kill), timeout=_PATIENCE)
        except NoResponders:
            raise click.ClickException(
                "no worker here was started with --chaos. Start some: outlive up APP --chaos"
            ) from None
        except RequestTimeout:
            raise click.ClickException(f"worker {kill.incarnation} was not started with --chaos") from None
        return msgspec.json.decode(reply.data, type=Killed)


async def _find_worker(client: Client, which: str | None) -> Kill:
    workers = (await client.health()).workers
    if which is None:
        return Kill(incarnation=await _busiest(client, workers))
    named = [one.incarnation for one in workers if which in (one.incarnation, str(one.pid))]
    return Kill(incarnation=named[0] if named else await _owner(client, which))


async def _busiest(client: Client, workers: Sequence[WorkerRecord]) -> str:
    """Return the one that holds most running tasks now; heartbeats tell it only once a second."""
    if not workers:
        raise click.ClickException("no worker is alive. Start one: outlive worker APP --chaos")
    running = await client.list(status=[Status.RUNNING], limit=api.PAGE_LIMIT)
    held = Counter(task.owner for task in running.tasks if task.owner)
    return held.most_common(1)[0][0] if held else workers[0].incarnation


async def _owner(client: Client, task_id: str) -> str:
    question = api.Get(task_id=task_id, with_input=False, with_result=False)
    task = await client.questions.ask("get", question, TaskRecord)
    if task.owner is None:
        raise click.ClickException(f"no worker holds task {task_id} now. To see why: outlive why {task_id}")
    return task.owner
