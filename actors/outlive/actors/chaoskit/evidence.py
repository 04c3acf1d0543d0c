"""The four questions, answered from evidence: tables, stream and shop, each read raw, and what a person was shown.

Nothing is believed because Outlive says so. An answer names the numbers it rests on, so that they can be looked up.
"""

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from outlive.actors.chaoskit.scene import PERSON, Scene
from outlive.infra.reader import Gap
from outlive.protocol import codec, keys
from outlive.protocol.task import Status

Told = Callable[[Mapping[str, Any]], bool]
"""Whether an event (as JSON) tells something."""


class Question(enum.StrEnum):
    """What is asked about each fault."""

    REPEATED = "repeated_side_effect"
    CONSISTENT = "consistent_in_the_end"
    REAL = "real_result_seen"
    TAKE_OVER = "person_can_take_over"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer.

    Attributes:
        yes: the answer to the question as it stands.
        ok: it is as it should be: no side effect repeated, and three times yes.
        because: why, in a sentence; where it is not ok, what was found instead.
        evidence: what it rests on: numbers of events, rows of the ledger, counts outside.
    """

    yes: bool
    ok: bool
    because: str
    evidence: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A task that met the fault, and how it must stand afterwards.

    Attributes:
        task_id: of the task.
        effects: what must have happened outside for it: how many of each name.
        status: how it must have ended.
        orders: the numbers of the shop in its result; None where it has no result.
        not_done: operations that must have had no effect, by name, with their status in the ledger.
        told: what a person must have been told, by what it is called in the evidence.
    """

    task_id: str
    effects: Mapping[str, int]
    status: Status = Status.SUCCEEDED
    orders: Callable[[Any], Sequence[int]] | None = list
    not_done: Mapping[str, str] = field(default_factory=dict[str, str])
    told: Mapping[str, Told] = field(default_factory=dict[str, Told])


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of one task."""

    task: dict[str, Any]
    ledger: list[dict[str, Any]]
    attempts: list[dict[str, Any]]
    facts: list[tuple[int, bytes]]
    stream: list[tuple[int, bytes]]
    commands: list[dict[str, Any]]
    outside: dict[str, list[tuple[int, str]]]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The history's events as JSON."""
        return [codec.decode(event) for _, event in self.facts]


DONE: Final = "succeeded"
DECISION: Final = "decision-"
"""How the shop's counts of requests to models begin: they change nothing but the bill."""


async def read(scene: Scene, task_id: str) -> Seen:
    """Read all evidence of a task."""
    mine = f"{scene.tenant}/{task_id}:"
    outside: dict[str, list[tuple[int, str]]] = {}
    for effect in await scene.service.effects():
        if (effect.key or "").startswith(mine):
            outside.setdefault(str(effect.key), []).append((effect.id, effect.name))
    facts = await scene.rows("facts", scene.tenant, task_id)
    return Seen(
        task=await scene.task(task_id), ledger=await scene.rows("ledger", scene.tenant, task_id),
        attempts=await scene.rows("attempts", scene.tenant, task_id), facts=[(row["seq"], row["event"]) for row in facts],
        stream=await scene.published(task_id), commands=await scene.rows("commands", scene.tenant, task_id),
        outside=outside,
    )  # fmt: skip


async def repeated(scene: Scene, tasks: Sequence[Expected], seen: Mapping[str, Seen]) -> Answer:
    """Answer whether a side effect was repeated: by what the shop counts under each key, and in all."""
    requests = (await scene.service.counts()).requests
    lines: list[dict[str, Any]] = []
    wrong: list[str] = []
    for task in tasks:
        found = seen[task.task_id]
        ledger = {row["key"]: row for row in found.ledger if not keys.is_request(row["name"])}
        for key in [*ledger, *(key for key in found.outside if key not in ledger)]:
            row, done = ledger.get(key), found.outside.get(key, [])
            lines.append({
                "key": key, "tool": row["name"] if row else done[0][1], "outside": len(done), "requests": requests.get(key, 0),
                "ledger": row["status"] if row else None, "attempts": row["attempts"] if row else 0,
            })  # fmt: skip
            wrong += [f"{key} happened {len(done)} times"] if len(done) > 1 else []
            wrong += [f"{key} happened and is not in the ledger"] if row is None else []
        counts = Counter(name for done in found.outside.values() for _, name in done)
        if counts != task.effects:
            wrong.append(f"task {task.task_id} has {dict(counts)} outside, and should have {dict(task.effects)}")
    everything = Counter(
        effect.name for effect in await scene.service.effects() if not effect.name.startswith(DECISION)
    )
    due = sum((Counter(task.effects) for task in tasks), Counter[str]())
    if everything != due:
        wrong.append(f"the shop counts {dict(everything)} in all, and should count {dict(due)}")
    because = "; ".join(wrong) or f"the shop counts {_plain(everything)}, each key once"
    return Answer(
        yes=bool(wrong), ok=not wrong, because=because, evidence={"operations": lines, "shop": dict(everything)}
    )


def consistent(tasks: Sequence[Expected], seen: Mapping[str, Seen]) -> Answer:
    """Answer whether all states agree in the end: row, ledger, shop, history and stream."""
    wrong = [f"{task.task_id}: {what}" for task in tasks for what in _disagreements(task, seen[task.task_id])]
    evidence = {
        task.task_id: {
            "status": (found := seen[task.task_id]).task.get("status"), "events": [seq for seq, _ in found.facts],
            "stream": [seq for seq, _ in found.stream], "epoch": found.task.get("epoch"),
            "ledger": {row["key"]: row["status"] for row in found.ledger},
        }
        for task in tasks
    }  # fmt: skip
    ends = ", ".join(f"{task.task_id} {task.status} after {len(seen[task.task_id].facts)} events" for task in tasks)
    because = "; ".join(wrong) or f"{ends}: row, ledger, shop, history and stream agree, no number missing"
    return Answer(yes=not wrong, ok=not wrong, because=because, evidence=evidence)


def _disagreements(task: Expected, found: Seen) -> list[str]:
    row, numbers = found.task, [seq for seq, _ in found.facts]
    wrong: list[str] = []
    if row.get("status") != task.status:
        wrong.append(f"is {row.get('status')}, should be {task.status}")
    if row.get("owner") is not None or row.get("cancelling") or not row.get("heard"):
        wrong.append("is not at rest")
    if numbers != list(range(1, len(numbers) + 1)):
        wrong.append(f"its history is {numbers}")
    if found.stream != found.facts:
        wrong.append(f"the stream has {[seq for seq, _ in found.stream]}, the history {numbers}")
    ends = [event["seq"] for event in found.events if event.get("final")]
    reopened = sum(one["verb"] == "retry" and one["code"] == "applied" for one in found.commands)
    if ends[-1:] != numbers[-1:] or len(ends) != 1 + reopened:
        wrong.append(f"final events are {ends} of {len(numbers)}, and a person reopened it {reopened} times")
    for one in found.ledger:
        outside = len(found.outside.get(one["key"], []))
        due = task.not_done.get(one["name"], DONE)
        if keys.is_request(one["name"]):
            continue  # no effect; one whose answer never came stays unknown, as does what it cost
        if one["status"] != due or outside != (due == DONE):
            wrong.append(f"the ledger says {one['name']} {one['status']}, outside it happened {outside} times")
    wrong += [f"command {one['command_id']} has no answer" for one in found.commands if one["code"] is None]
    return wrong


async def shown(scene: Scene, tasks: Sequence[Expected], seen: Mapping[str, Seen]) -> Answer:
    """Answer whether a person sees what really happened: by the public reader and the record, against the shop."""
    wrong: list[str] = []
    evidence: dict[str, Any] = {}
    for task in tasks:
        record = await scene.client.get(task.task_id)
        events = await _events(scene, task.task_id)
        told = {what: [e["seq"] for e in events if tells(e)] for what, tells in task.told.items()}
        outside = sorted(number for done in seen[task.task_id].outside.values() for number, _ in done)
        wrong += [f"{task.task_id}: nobody was told: {what}" for what, numbers in told.items() if not numbers]
        result: list[int] | None = None
        if task.orders is not None:
            result = list(task.orders(record.result)) if record.result is not None else None
            if result is None or sorted(result) != outside:
                wrong.append(f"{task.task_id} shows {result}, the shop has {outside}")
        last = events[-1]["message"] if events else None
        evidence[task.task_id] = {"shown": result, "outside": outside, "told": told, "last": last}
    because = "; ".join(wrong) or "what is shown are the numbers that the shop gave, and the fault was told"
    return Answer(yes=not wrong, ok=not wrong, because=because, evidence=evidence)


async def _events(scene: Scene, task_id: str) -> list[dict[str, Any]]:
    async with aclosing(scene.client.events(task_id)) as events:
        return [msgspec.to_builtins(event) async for event in events if not isinstance(event, Gap)]


@dataclass(frozen=True, kw_only=True)
class TakeOver:
    """What a person did to a task in the middle of the fault.

    Attributes:
        task: the task.
        typed: the commands, as they would be typed.
        verbs: the same, as they stand in the task's inbox.
        before: how it stood.
        check: more that must hold afterwards: what was found instead, or None.
    """

    task: Expected
    typed: Sequence[str]
    verbs: Sequence[str]
    before: Mapping[str, Any]
    check: str | None = None


async def taken_over(scene: Scene, done: TakeOver, seen: Seen) -> Answer:
    """Answer whether a person could take over: what they said is applied, and the task ended by it."""
    said = [one for one in seen.commands if one["by"] == PERSON and one["verb"] != "submit"]
    verbs = [one["verb"] for one in said]
    refused = [f"{one['verb']}: {one['code']}, {one['message']}" for one in said if one["code"] != "applied"]
    wrong = [done.check] if done.check else []
    if verbs != list(done.verbs) or refused:
        wrong.append(f"commands {verbs} instead of {list(done.verbs)}" if not refused else "; ".join(refused))
    if seen.task.get("status") != done.task.status:
        wrong.append(f"the task is {seen.task.get('status')}, should be {done.task.status}")
    heard = [event["seq"] for event in seen.events if event.get("by") == PERSON or event["type"] == "command"]
    evidence = {
        "task": done.task.task_id, "typed": list(done.typed), "before": dict(done.before), "after": seen.task.get("status"),
        "answers": [{"command": one["verb"], "code": one["code"]} for one in said], "events": heard,
        "outside": await scene.effects(done.task.task_id),
    }  # fmt: skip
    because = "; ".join(wrong) or f"{'; '.join(done.typed)}: applied, and the task {done.task.status}"
    return Answer(yes=not wrong, ok=not wrong, because=because, evidence=evidence)


def _plain(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "nothing"
