"""A task's plan and the versions it works with: facts that its function makes, each at its place like a step.

The plan in `Flow.plan` is the one that the function has reached: while it runs again it goes through its plans anew.
`Flow.plan_version` is that of the last one recorded, and only grows.
"""

import re
from collections.abc import Sequence
from typing import Final

from outlive.actors.flow import Flow
from outlive.actors.history import call_text
from outlive.infra import happenings
from outlive.infra.records import AnswerRow, Record, State
from outlive.protocol import codec
from outlive.protocol.ids import ID_LENGTH
from outlive.protocol.plan import Item, Plan, progress_text
from outlive.protocol.task import Versions

_NO_ID: Final = re.compile(r"[^A-Za-z0-9_-]+")
_EDIT: Final = codec.digest(b"edit-plan")


def items_of(parts: Sequence[str | Item]) -> list[Item]:
    """Make items of texts; a text that is no id gets one of its letters and digits, or its number."""
    return [
        part if isinstance(part, Item) else Item(_NO_ID.sub("-", part).strip("-_")[:ID_LENGTH] or f"item-{n}", part)
        for n, part in enumerate(parts, 1)
    ]


def adopt(flow: Flow, items: list[Item], *, note: str = "", by: str | None = None) -> Plan | None:
    """Make a plan, or the next version of it, a fact at the next place. Returns it as recorded.

    None: a person has changed the plan meanwhile and `take_edit` has not told it yet. Then nothing is adopted, now and
    on every run.

    Raises:
        PlanInvalid: it breaks the rules for plans.
    """
    step_id = flow.place()
    arguments = codec.encode({"items": items, "note": note})
    digest = codec.digest(b"plan", arguments)
    stored = flow.recall(step_id, "plan", digest, lambda _: "plan(...)")
    if stored is not None:
        if stored.body is None:
            return None
        flow.plan = codec.decode(stored.body, Plan)
        return flow.plan
    plan = Plan(flow.plan_version + 1, items, note, by)
    flow.check()
    claim, now = flow.claim, flow.world.clock.now()
    if flow.history.edits:
        message = "A new plan was passed over: a person has changed the plan meanwhile"
        passed = happenings.note(claim, now, step_id, message, name="plan", digest=digest)
        flow.write(Record(facts=(passed,)))
        return None
    flow.write(record_of(flow, plan, step_id=step_id, digest=digest))
    flow.plan = plan
    return plan


def record_of(flow: Flow, plan: Plan, *, step_id: str | None = None, digest: bytes | None = None) -> Record:
    """Return what makes a plan the task's last one."""
    fact = happenings.plan(flow.claim, flow.world.clock.now(), plan, step_id=step_id, digest=digest)
    flow.plan_version = plan.version
    return Record(facts=(fact,), state=State(plan_version=plan.version, plan_total=len(plan.items)))


def attribute(flow: Flow, item: str | None) -> None:
    """The steps that this branch calls next, and the branches that it begins, belong to an item of the plan."""
    flow.item = item


def phase(flow: Flow, name: str) -> None:
    """As `attribute`, told to people by a note at the next place. Raises `ValueError` where the plan has no such item."""
    step_id = flow.place()
    item = next((each for each in (flow.plan.items if flow.plan else ()) if name in {each.id, each.text}), None)
    if flow.plan is None or item is None:
        known = f"its items are: {', '.join(each.id for each in flow.plan.items)}" if flow.plan else "there is none"
        raise ValueError(f"phase({name!r}) names no item of the plan; {known}. Write task.plan(...) before")
    attribute(flow, item.id)
    arguments = codec.encode({"item": item.id})
    digest = codec.digest(b"phase", arguments)
    stored = flow.recall(step_id, "phase", digest, lambda given: call_text("phase", given or arguments))
    if stored is None:
        flow.check()
        message = progress_text(flow.plan, item.id, item.text)
        fact = happenings.note(
            flow.claim, flow.world.clock.now(), step_id, message, name="phase", digest=digest, arguments=arguments,
            item=item.id,
        )  # fmt: skip
        flow.write(Record(facts=(fact,)))


def take_edit(flow: Flow) -> Plan | None:
    """Take what people have made of the plan since the last time; the last of these plans, or None.

    It takes a place only where there is an edit to take, so it must be called where the next place is that of a step which
    leaves a record (an effect, a wait, a note): then a run that finds such a record takes nothing before it.
    """
    taken: Plan | None = None
    while True:
        step_id = flow.next_place
        stored = flow.history.done.get(step_id)
        if stored is not None and (stored.name, stored.digest) == ("edit-plan", _EDIT):
            flow.recall(flow.place(), "edit-plan", _EDIT, lambda _: "edit-plan")
            taken = flow.plan = codec.decode(stored.body or b"", Plan)
        elif flow.history.edits and not flow.history.knows(step_id):
            flow.check()
            letter, plan = flow.history.edits.popleft()
            fact = happenings.step(
                flow.claim, flow.world.clock.now(), flow.place(), "edit-plan", "completed",
                f"Goes on by version {plan.version} of the plan, made by {plan.by or 'a person'}",
                digest=_EDIT, body=codec.encode(plan), inbox_pos=letter.pos,
            )  # fmt: skip
            flow.write(Record(facts=(fact,), answers=(AnswerRow(letter.pos, taken=True),), steps=1))
            taken = flow.plan = plan
        else:
            return taken


def use(flow: Flow, versions: Versions) -> None:
    """Record which model and prompt the function works with from here on, at the next place.

    What this place had before is in the history: another model or prompt there is a change between two runs, and what
    follows from one is decided here. It is told, and the new ones are recorded.
    """
    step_id = flow.place()
    stored = flow.recall(step_id, "versions", None, lambda _: "versions(...)")
    before = codec.decode(stored.body or b"{}", Versions) if stored is not None else None
    if before == versions:
        return
    flow.check()
    said = {"model": versions.model, "prompt": versions.prompt}
    message = "Works with " + ", ".join(f"{what} {value}" for what, value in said.items() if value is not None)
    answers: tuple[AnswerRow, ...] = ()
    if before is not None:
        was, now = (", ".join(filter(None, (each.model, each.prompt))) or "nothing" for each in (before, versions))
        message += f" (before: {was})"
        answers = (
            AnswerRow(
                -flow.claim.last_seq - 1, "applied", message[:500], who=f"task {flow.claim.kind}", what="version",
                before=was, after=now,
            ),
        )  # fmt: skip  # no inbox row has that place: a line of the audit
    fact = happenings.note(
        flow.claim, flow.world.clock.now(), step_id, message[:500], name="versions", body=codec.encode(versions)
    )
    state = State(model_version=versions.model, prompt_version=versions.prompt)
    flow.write(Record(facts=(fact,), state=state, answers=answers))
