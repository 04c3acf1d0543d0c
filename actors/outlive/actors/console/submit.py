"""``submit``: making a task."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, Self, TypeVar

import click

from outlive.actors.console import arguments, codes, interrupt, output
from outlive.actors.console.options import Given, by_option, client_options, pass_given
from outlive.actors.console.watch import follow
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.protocol import ids
from outlive.protocol.budget import Budget

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.argument("kind"),
    click.argument("words", nargs=-1, metavar="[KEY=TEXT|KEY:=JSON]..."),
    click.option("--input", "-i", "whole", metavar="JSON|@FILE|-", help="The input as one JSON object."),
    click.option("--task-id", metavar="ID", help="An id of your own: submitted again, it is the same task."),
    click.option(
        "--priority", type=click.IntRange(-100, 100), default=0, show_default=True, metavar="N", help="Higher first."
    ),
    click.option(
        "--require-approval",
        "requires_approval",
        multiple=True,
        metavar="all|TOOL",
        help="Effects of this tool (or all) wait for a yes, whatever the tool's rule says; repeatable.",
    ),
    click.option(
        "--budget", metavar="LIMIT=NUMBER,...", help="What it may spend on models: tokens=10000,money=0.50,steps=100."
    ),
    click.option("--label", "-l", "labels", multiple=True, metavar="KEY=VALUE", help="To find it again; repeatable."),
)


class Order(NamedTuple):
    """A task to be made, as the command line says it."""

    kind: str
    input: dict[str, Any]
    task_id: str
    priority: int
    labels: dict[str, str]
    requires_approval: bool | list[str]
    budget: Budget | None

    @classmethod
    def read(
        cls,
        kind: str,
        words: Sequence[str],
        whole: str | None,
        task_id: str | None,
        priority: int,
        labels: Sequence[str],
        requires_approval: Sequence[str] = (),
        budget: str | None = None,
    ) -> Self:
        """Read the values of `order_options`; mistakes are usage errors."""
        task_input = arguments.task_input(whole, words)
        wanted = True if "all" in requires_approval else list(requires_approval)
        limits = None if budget is None else arguments.budget(budget)
        return cls(kind, task_input, task_id or ids.new_id(), priority, arguments.labels(labels), wanted, limits)

    async def submit(self, client: Client, command_id: str | None = None) -> Handle[Any]:
        """Submit it. Raises like `Client.submit`."""
        return await client.submit(
            self.kind, self.input, task_id=self.task_id, priority=self.priority, labels=self.labels,
            requires_approval=self.requires_approval, budget=self.budget, command_id=command_id,
        )  # fmt: skip


def order_options(function: F) -> F:
    """Add what `Order` is made of."""
    return reduce(lambda decorated, option: option(decorated), reversed(_OPTIONS), function)


@click.command()
@order_options
@click.option("--command-id", metavar="ID", help="Of a submit whose answer was lost: asks what became of it.")
@click.option("--watch", "-w", "watching", is_flag=True, help="Follow the task; Ctrl-C only stops watching.")
@by_option
@client_options
@pass_given
def submit(given: Given, /, command_id: str | None, watching: bool, by: str, **order: Any) -> int:
    """Submit a task and write its id.

    KEY=TEXT gives a text, KEY:=JSON any value, for instance: collect folder=. deep:=true
    """
    wanted = Order.read(**order)

    async def submitting(_: interrupt.Interrupt) -> int:
        async with Client(given.settings(), by=by) as client:
            handle = await wanted.submit(client, command_id)
            _tell(handle, given, watching=watching)
            return await follow(client, given, {handle.task_id: 1}) if watching else codes.DONE

    return interrupt.run(submitting)


def _tell(handle: Handle[Any], given: Given, *, watching: bool) -> None:
    if given.as_json:
        output.emit(handle.answer)
    elif watching:
        output.say(f"task {handle.task_id}")
    else:
        click.echo(handle.task_id)
        output.say(f"{handle.answer.message if handle.answer else ''}\nto see it: outlive watch {handle.task_id}")
