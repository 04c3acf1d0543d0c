"""``watch``: following tasks that run elsewhere. Leaving does nothing to them."""

import asyncio
from collections.abc import Mapping, Sequence

import click

from outlive.actors.console import bars, interrupt, output
from outlive.actors.console.following import Follower, somebody_looks
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.infra.client import Client


@click.command()
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@click.option(
    "--from-seq", "-n", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Begin at this event."
)
@client_options
@pass_given
def watch(given: Given, tasks: Sequence[str], from_seq: int) -> int:
    """Follow tasks until they end; Ctrl-C only stops watching.

    Where nobody looks (no terminal, or --json) it also ends, with code 3, when a task waits for a person.
    """

    async def watching(_: interrupt.Interrupt) -> int:
        async with Client(given.settings()) as client:
            return await follow(client, given, dict.fromkeys(tasks, from_seq))

    return interrupt.run(watching)


async def follow(client: Client, given: Given, tasks: Mapping[str, int]) -> int:
    """Follow tasks on the screen that fits; when interrupted, say how to go on."""
    view = bars.choose(as_json=given.as_json, named=len(tasks) > 1)
    follower = Follower(client, view, stay=somebody_looks() and not given.as_json)
    try:
        with view:
            return await follower.follow(tasks)
    except asyncio.CancelledError:
        for task_id, seq in follower.seen.items():
            output.say(f"detached. To see the rest: outlive watch {task_id} --from-seq {seq + 1}")
        raise
