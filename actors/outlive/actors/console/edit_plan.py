"""``edit-plan``: give an agent another plan, checked against the version that was looked at."""

from collections.abc import Sequence

import click
import msgspec

from outlive.actors.console import arguments, output
from outlive.actors.console.options import Given, by_option, client_options, pass_given
from outlive.actors.console.session import ask
from outlive.actors.console.steer import reason_option, send, task_argument
from outlive.infra.client import Client
from outlive.protocol.plan import Item, ItemStatus, PlanInvalid, check


class Sheet(msgspec.Struct):
    """A plan as a person edits it: what ``--show`` writes and a file holds; other fields are passed over."""

    version: int
    items: list[Item]


@click.command("edit-plan")
@task_argument
@click.argument("plan", metavar="[@FILE|-|JSON]", required=False)
@click.option("--show", "shown", is_flag=True, help="Write the plan as it is, to be changed and given back.")
@click.option("--version", type=click.IntRange(0), metavar="N", help="Of the plan that you have changed; 0: none yet.")
@click.option("--item", "items", multiple=True, metavar="ID=TEXT", help="An item of the new plan; may be repeated.")
@reason_option
@by_option
@client_options
@pass_given
def edit_plan(
    given: Given,
    task_id: str,
    plan: str | None,
    shown: bool,
    version: int | None,
    items: Sequence[str],
    reason: str | None,
    by: str,
) -> None:
    """Give an agent another plan; its next decision goes by it.

    The new plan is a file (@plan.json, written by --show and changed), or --version with all its items.
    """
    if shown:
        output.emit(ask(given, lambda client: _sheet(client, task_id)))
        return
    sheet = _given(plan, version, items)
    send(given, by, lambda client: client.edit_plan(task_id, sheet.version, sheet.items, reason=reason))


async def _sheet(client: Client, task_id: str) -> Sheet:
    plan = (await client.get(task_id, with_input=False, with_result=False)).plan
    if plan is None:
        return Sheet(0, [])
    kept = [item for item in plan.items if item.status is not ItemStatus.DROPPED]
    return Sheet(plan.version, [Item(item.id, item.text, item.after) for item in kept])


def _given(plan: str | None, version: int | None, items: Sequence[str]) -> Sheet:
    if (plan is None) == (not items):
        raise click.UsageError("give the new plan: @FILE, or --item ID=TEXT for each item; see it with --show")
    if plan is not None:
        sheet = _read(plan)
    elif version is None:
        raise click.UsageError("--item needs --version N: of the plan that you have changed; see it with --show")
    else:
        sheet = Sheet(version, [_item(word) for word in items])
    try:
        check(sheet.items)
    except PlanInvalid as error:
        raise click.UsageError(str(error)) from error
    return sheet if version is None else Sheet(version, sheet.items)


def _read(plan: str) -> Sheet:
    text = arguments.text(plan, "the plan")
    try:
        return msgspec.json.decode(text, type=Sheet)
    except msgspec.DecodeError as error:
        raise click.UsageError(
            f'the plan is not {{"version": N, "items": [{{"id", "text", "after"}}]}}: {error}'
        ) from error


def _item(word: str) -> Item:
    item_id, sign, text = word.partition("=")
    if not sign:
        raise click.UsageError(f"'{word}' is not ID=TEXT")
    return Item(item_id, text)
