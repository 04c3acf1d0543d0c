"""``watch``: following tasks that run elsewhere. Leaving does nothing to them."""

import asyncio
from collections.abc import Mapping, Sequence

import anyio
import click

from outlive.actors.console import bars, codes, interrupt, output
from outlive.actors.console.following import Follower, somebody_looks
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.actors.console.screen import LineScreen, Screen
from outlive.infra.client import Client
from outlive.infra.reader import Item
from outlive.protocol.task import TaskRecord


@click.command()
@click.argument("tasks", nargs=-1, required=True, metavar="TASK...")
@click.option(
    "--from-seq", "-n", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Begin at this event."
)
@click.option("--tokens", is_flag=True, help="Show what the model of an agent with stream=True writes, as it comes.")
@client_options
@pass_given
def watch(given: Given, tasks: Sequence[str], from_seq: int, tokens: bool) -> int:
    """Follow tasks until they end; Ctrl-C only stops watching.

    Where nobody looks (no terminal, or --json) it also ends, with code 3, when a task waits for a person.
    """
    if tokens and (given.as_json or len(tasks) > 1):
        raise click.UsageError("--tokens is for eyes, and for one task: leave out --json and the other tasks")

    async def watching(_: interrupt.Interrupt) -> int:
        async with Client(given.settings()) as client:
            if tokens:
                return await _follow_words(client, given, tasks[0], from_seq)
            return await follow(client, given, dict.fromkeys(tasks, from_seq))

    return interrupt.run(watching)


async def follow(client: Client, given: Given, tasks: Mapping[str, int]) -> int:
    """Follow tasks on the screen that fits; when interrupted, say how to go on."""
    return await _follow_on(bars.choose(as_json=given.as_json, named=len(tasks) > 1), client, given, tasks)


async def _follow_on(view: Screen, client: Client, given: Given, tasks: Mapping[str, int]) -> int:
    follower = Follower(client, view, stay=somebody_looks() and not given.as_json)
    try:
        with view:
            return await follower.follow(tasks)
    except asyncio.CancelledError:
        for task_id, seq in follower.seen.items():
            output.say(f"detached. To see the rest: outlive watch {task_id} --from-seq {seq + 1}")
        raise


async def _follow_words(client: Client, given: Given, task_id: str, from_seq: int) -> int:
    view, code = _Words(), codes.FAILED

    async def listen() -> None:
        async with client.tokens(task_id) as tokens:
            async for words in tokens:
                view.write(words.text)

    async with anyio.create_task_group() as group:
        group.start_soon(listen)
        code = await _follow_on(view, client, given, {task_id: from_seq})
        group.cancel_scope.cancel()
    return code


class _Words(LineScreen):
    """A line per event, and between them a model's words while they come."""

    def __init__(self) -> None:
        super().__init__()
        self._open = False  # a line of words has begun

    def write(self, text: str) -> None:
        self._open = True
        click.echo(text, nl=False, err=True)

    def event(self, task_id: str, item: Item) -> None:
        self._close()
        super().event(task_id, item)

    def end(self, task: TaskRecord) -> None:
        self._close()
        super().end(task)

    def _close(self) -> None:
        if self._open:
            click.echo(err=True)
        self._open = False
