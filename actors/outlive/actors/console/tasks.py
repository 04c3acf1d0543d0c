"""``list``, ``show``, ``why``, ``waiting``: looking at tasks."""

from collections.abc import Sequence
from typing import Any, Final

import click
from rich.text import Text

from outlive.actors.console import arguments, output
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.actors.console.receipt import word
from outlive.actors.console.session import ask
from outlive.infra.client import Client
from outlive.protocol.api import PAGE_LIMIT, OperationPage, TaskPage
from outlive.protocol.checkpoint import Checkpoint
from outlive.protocol.plan import ItemStatus
from outlive.protocol.task import FINAL, Status, TaskRecord

SHOWN: Final = 20
"""Steps that ``show`` lists unless all are asked for."""

_ITEM_STYLES: Final = {
    ItemStatus.WAITING: "", ItemStatus.DOING: "cyan", ItemStatus.DONE: "green", ItemStatus.FAILED: "red",
    ItemStatus.DROPPED: "dim",
}  # fmt: skip

_limit = click.option(
    "--limit", type=click.IntRange(1, PAGE_LIMIT), default=50, show_default=True, help="Most tasks to list."
)
_after = click.option("--after", metavar="TOKEN", help="The page after the one that named this token.")


@click.command("list")
@click.option(
    "--status", "-s", multiple=True, type=click.Choice([*Status], case_sensitive=False), help="May be repeated."
)
@click.option("--kind", "-k", metavar="KIND", help="Tasks of this kind.")
@click.option("--parent", metavar="TASK", help="Children of this task.")
@click.option("--label", "-l", "labels", multiple=True, metavar="KEY=VALUE", help="May be repeated: all must fit.")
@_limit
@_after
@client_options
@pass_given
def list_tasks(
    given: Given,
    status: Sequence[Status],
    kind: str | None,
    parent: str | None,
    labels: Sequence[str],
    limit: int,
    after: str | None,
) -> None:
    """List tasks, newest first."""
    wanted = arguments.labels(labels)
    page = ask(
        given,
        lambda client: client.list(
            status=[*map(Status, status)], kind=kind, parent=parent, labels=wanted, limit=limit, after=after
        ),
    )
    if given.as_json:
        output.emit(page)
        return
    if page.tasks:
        table = output.table("TASK", "KIND", "STATUS", ">STEPS", "CHANGED", "NOW")
        for task in page.tasks:
            table.add_row(
                task.task_id, task.kind, output.status(task.status), str(task.done.count),
                output.age(task.updated_at), _now(task),
            )  # fmt: skip
        output.console().print(table, soft_wrap=False)
    _tell_more(page, "no tasks")


def _now(task: TaskRecord) -> str:
    if task.failure is not None:
        return f"{task.failure.type}: {task.failure.message}".splitlines()[0]
    if task.needs:
        return task.needs[0]
    return task.doing or ""


def _tell_more(page: TaskPage, none: str) -> None:
    if not page.tasks:
        output.say(none)
    if page.after:
        output.say(f"more: --after {page.after}")


@click.command()
@_limit
@_after
@client_options
@pass_given
def waiting(given: Given, limit: int, after: str | None) -> None:
    """List the tasks that wait for a person, with the command to type."""
    page = ask(given, lambda client: client.waiting(limit=limit, after=after))
    if given.as_json:
        output.emit(page)
        return
    console = output.console()
    for task in page.tasks:
        console.print(Text.assemble(task.task_id, f"  {task.kind}", (f"  since {output.age(_since(task))}", "dim")))
        for reason in task.reasons:
            message = (reason.message or reason.reason).replace("\n", "\n  ")
            console.print(Text.assemble((f"  {message}", "yellow"), f"\n  {reason.do}"))
    _tell_more(page, "nothing waits for a person")


def _since(task: TaskRecord) -> Any:
    return min((reason.since for reason in task.reasons), default=task.updated_at)


@click.command()
@click.argument("task_id", metavar="TASK")
@client_options
@pass_given
def why(given: Given, task_id: str) -> None:
    """Say why a task is where it is, and what happens next."""
    text = ask(given, lambda client: client.why(task_id))
    if given.as_json:
        output.emit({"task_id": task_id, "text": text})
    else:
        output.console().print(text, soft_wrap=False)


@click.command()
@click.argument("task_id", metavar="TASK")
@click.option("--all", "-a", "everything", is_flag=True, help=f"All steps, not only the last {SHOWN}.")
@client_options
@pass_given
def show(given: Given, task_id: str, everything: bool) -> None:
    """Show all that is known of a task: its record, steps and operations."""
    task, checkpoint, ledger = ask(given, lambda client: _whole(client, task_id))
    if given.as_json:
        whole = {"task": task, "checkpoint": checkpoint}
        output.emit({**whole, "operations": ledger.operations, "attempts": ledger.attempts, "words": ledger.words})
        return
    output.console().print(output.fields(_record(task)), soft_wrap=False)
    _show_plan(task)
    _show_steps(checkpoint, 0 if everything else max(len(checkpoint.completed_steps) - SHOWN, 0))
    _show_operations(ledger)
    _show_words(ledger)


async def _whole(client: Client, task_id: str) -> tuple[TaskRecord, Checkpoint, OperationPage]:
    return await client.get(task_id), await client.checkpoint(task_id), await client.operations(task_id)


def _record(task: TaskRecord) -> dict[str, Any]:
    holder = f", held by worker {task.owner}" if task.owner else ""
    return {
        "task": task.task_id,
        "kind": task.kind,
        "status": Text.assemble(output.status(task.status), f" (epoch {task.epoch}{holder})"),
        "waits for": "\n".join(f"{one.message or one.reason}\nto go on: {one.do}" for one in task.reasons),
        "goal": task.goal,
        "input": task.input and output.short(task.input, 1000),
        "labels": " ".join(f"{key}={text}" for key, text in task.labels.items()),
        "parent": task.parent,
        "priority": task.priority or None,
        "code": task.versions.code,
        "model": task.versions.model,
        "prompt": task.versions.prompt,
        "created": f"{task.created_at:%Y-%m-%d %H:%M:%SZ}, {output.age(task.created_at)}",
        "changed": f"{task.updated_at:%Y-%m-%d %H:%M:%SZ}, {output.age(task.updated_at)}",
        "doing": task.doing,
        "done": f"{output.count(task.done.count, 'step')}, {output.count(task.last_seq, 'event')}",
        "result": output.short(task.result, 1000) if task.status is Status.SUCCEEDED else None,
        "failure": task.failure and (task.failure.traceback or f"{task.failure.type}: {task.failure.message}"),
        "models": task.spending and output.spending(task.spending),
        "next": None if task.status in FINAL else f"outlive why {task.task_id}",
    }


def _show_plan(task: TaskRecord) -> None:
    if task.plan is None:
        return
    table = output.table(">PLAN", "ITEM", "STATUS", "TEXT")
    for n, item in enumerate(task.plan.items, 1):
        dropped = item.status is ItemStatus.DROPPED
        status = Text(str(item.status), style=_ITEM_STYLES[item.status])
        table.add_row("" if dropped else str(n), item.id, status, item.text)
    output.console().print()
    output.console().print(table, soft_wrap=False)


def _show_steps(checkpoint: Checkpoint, first: int) -> None:
    steps, pending = checkpoint.completed_steps[first:], checkpoint.pending_step
    if not steps and pending is None:
        return
    output.console().print()
    if first:
        output.say(f"{first} steps before these: --all")
    table = output.table("STEP", "NAME", "STATUS", "RESULT")
    for step in steps:
        table.add_row(step.step_id, step.name, step.status, output.short(checkpoint.tool_results.get(step.step_id)))
    if pending is not None:
        table.add_row(pending.step_id, pending.name, Text(pending.status, style="cyan"), "")
    output.console().print(table, soft_wrap=False)


def _show_operations(ledger: OperationPage) -> None:
    if not ledger.operations:
        return
    table = output.table("STEP", "OPERATION", "NAME", "STATUS", ">ATTEMPTS", "KEY")
    for one in ledger.operations:
        table.add_row(one.step_id, one.operation_id, one.name, str(one.status), str(one.attempts), one.key)
    console = output.console()
    console.print()
    console.print(table, soft_wrap=False)
    for one in ledger.operations:
        if one.doubt is not None:
            console.print(Text(f"{one.name} (step {one.step_id}): {one.doubt}", style="bold red"))


def _show_words(ledger: OperationPage) -> None:
    """Tell what people said about operations, and where they corrected arguments."""
    if not ledger.words:
        return
    table = output.table("OPERATION", "SAID")
    for one in ledger.words:
        table.add_row(f"{one.step_id}:{one.operation_id}", word(one))
    output.console().print()
    output.console().print(table, soft_wrap=False)
