"""``receipt``: what a task did to the world, and who agreed to it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import click
from rich.text import Text

from outlive.actors.console import output
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.actors.console.session import ask
from outlive.actors.console.steer import task_argument
from outlive.infra.client import Client
from outlive.protocol import keys, steps
from outlive.protocol.api import OperationPage
from outlive.protocol.effects import EffectOutcome, Entry, outcome_of
from outlive.protocol.operations import AttemptRecord, OperationRecord, OperationStatus, WordRecord
from outlive.protocol.task import FINAL, TaskRecord

_UNDER_WAY: Final = {
    OperationStatus.AWAITING_APPROVAL: ("not sent: it waits for a yes", "yellow"),
    OperationStatus.STARTED: ("under way", "cyan"),
}
"""While the task is alive; after its end the outcome says what became of them."""

_OUTCOMES: Final[Mapping[EffectOutcome, tuple[str, str]]] = {
    "happened": ("happened", "green"),
    "undone": ("happened, and was undone", "green"),
    "undo_failed": ("happened, and could not be undone", "bold yellow"),
    "undo_unknown": ("happened, unknown whether it was undone", "bold yellow"),
    "unknown": ("unknown whether it happened", "bold yellow"),
    "did_not_happen": ("did not happen", "red"),
    "not_approved": ("not sent: nobody said yes", "dim"),
}
_NOT_SENT: Final = frozenset({OperationStatus.PREPARED, OperationStatus.AWAITING_APPROVAL})
_WORDS: Final = {"approve": "yes", "reject": "no", "retry": "arguments corrected"}


@click.command()
@task_argument
@client_options
@pass_given
def receipt(given: Given, task_id: str) -> None:
    """Show what a task did to the world: each effect with key, arguments, attempts, approval and outcome."""
    task, ledger = ask(given, lambda client: _ledger(client, task_id))
    ledger.operations.sort(key=lambda one: one.started_at)
    effects = [*_effects(task, ledger)]
    if given.as_json:
        output.emit({"task_id": task_id, "status": task.status, "effects": effects, "models": task.spending})
        return
    console = output.console()
    console.print(Text.assemble(f"{task_id}  {task.kind}  ", output.status(task.status)))
    if task.spending is not None:
        console.print(f"models: {output.spending(task.spending)}")
    elif requests := sum(keys.is_request(one.name) for one in ledger.operations):
        console.print(f"models: {output.count(requests, 'request')}")
    for effect in effects:
        console.print(Text.assemble("\n", (f"{effect['name']} ({_place(effect['operation_id'])})", "bold")))
        console.print(output.fields(_shown(effect)), soft_wrap=False)
    if not effects:
        output.say("it has changed nothing outside")


async def _ledger(client: Client, task_id: str) -> tuple[TaskRecord, OperationPage]:
    return await client.get(task_id, with_input=False, with_result=False), await client.operations(task_id)


def _effects(task: TaskRecord, ledger: OperationPage) -> Iterable[dict[str, Any]]:
    """Put together what the ledger has of each operation."""
    undoing = {one.step_id: one for one in ledger.operations if steps.is_undo(one.step_id)}
    undone = {steps.undo(one.step_id, one.operation_id): one for one in ledger.operations}
    for one in ledger.operations:
        if keys.is_request(one.name):
            continue  # it changes nothing but the bill
        undo, original = undoing.get(steps.undo(one.step_id, one.operation_id)), undone.get(one.step_id)
        entry = Entry(one.step_id, one.operation_id, one.name, one.status)
        yield {
            "operation_id": f"{one.step_id}:{one.operation_id}",
            "outcome": None
            if task.status not in FINAL and one.status in _UNDER_WAY
            else outcome_of(entry, undo.status if undo is not None else None),
            "undoes": f"{original.step_id}:{original.operation_id}" if original is not None else None,
            "step_id": one.step_id,
            "name": one.name,
            "key": one.key,
            "arguments": one.arguments,
            "result": one.result,
            "digest": one.digest,
            "status": one.status,
            "note": one.note,
            "started_at": one.started_at,
            "ended_at": one.ended_at,
            "attempts": one.attempts,
            "doubt": one.doubt,
            "bad_attempts": [each for each in ledger.attempts if _about(each, one) and each.error_class is not None],
            "words": [each for each in ledger.words if _about(each, one)],
        }


def _about(part: AttemptRecord | WordRecord, operation: OperationRecord) -> bool:
    return (part.step_id, part.operation_id) == (operation.step_id, operation.operation_id)


def _shown(effect: dict[str, Any]) -> dict[str, Any]:
    outcome, style = _OUTCOMES[effect["outcome"]] if effect["outcome"] else _UNDER_WAY[effect["status"]]
    ended = effect["ended_at"]
    at = f", {_time(ended)}" if ended is not None else ""
    return {
        "outcome": Text.assemble((outcome, style), at),
        "note": effect["note"],
        "but": effect["doubt"] and Text(effect["doubt"], style="bold red"),
        "undoes": effect["undoes"] or "",
        "key": effect["key"],
        "arguments": output.short(effect["arguments"], 1000),
        "attempts": None if effect["status"] in _NOT_SENT else _attempts(effect),
        "result": None if effect["result"] is None else output.short(effect["result"], 300),
        "said": "\n".join(map(word, effect["words"])),
    }


def _attempts(effect: dict[str, Any]) -> str:
    return "\n".join([str(effect["attempts"]), *map(_attempt, effect["bad_attempts"])])


def _attempt(one: AttemptRecord) -> str:
    how = f"{one.error_class or 'failed'}".replace("_", " ")
    return f"  {one.attempt}: {how}: {one.reason or 'no reason is known'}"


def _place(operation_id: str) -> str:
    step_id, number = keys.split_operation(operation_id)
    return f"step {step_id}" if number == "1" else f"step {step_id}, operation {number}"


def word(one: WordRecord) -> str:
    """Put what a person said into a line."""
    said = _WORDS.get(one.verb) or (one.verdict or one.verb).replace("_", " ")
    said += ", sent again under a new key" if one.new_operation else ""
    who = (one.by or "somebody") + ("" if one.proven else " (claimed)")
    more = "".join(f", {text}" for text in (one.reason, one.reference) if text)
    return f"{said}: {who}, {_time(one.at)}{more}"


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%SZ}"
