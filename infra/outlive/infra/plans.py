"""A task's plan as it stands: its versions are facts, and how far an item is follows from the facts of its steps."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from outlive.protocol import plan
from outlive.protocol.plan import ItemStatus, Plan
from outlive.protocol.task import FINAL, TaskRecord

VERSIONS: Final = 20
"""How many versions are looked at for items that were dropped."""

_read: Final = msgspec.json.Decoder(Plan).decode


class Standing(NamedTuple):
    """What is stored of a task's plans: the plans, oldest first; per item its steps' last word; where its code is."""

    plans: list[Plan]
    steps: list[tuple[str, str]]
    current: str | None


def standing(rows: Sequence[Any]) -> Standing:
    """Read the rows of the statement ``plan``."""
    found = Standing([], [], None)
    for row in rows:
        if row["body"] is not None:
            found.plans.append(_read(row["body"]))
        elif row["status"] == "current":
            found = found._replace(current=row["item"])
        else:
            found.steps.append((row["item"], "started" if row["open"] else row["status"]))
    return found


def planned(task: TaskRecord, found: Standing) -> TaskRecord:
    """Return a task's record with its plan, what is left of it, and at which item it is."""
    shown = plan.record(found.plans, found.steps, None if task.status in FINAL else found.current)
    if shown is None:
        return task
    busy = next((item for item in shown.items if item.status is ItemStatus.DOING), None)
    doing = task.doing
    if busy is not None and task.status not in FINAL:
        text = plan.progress_text(found.plans[-1], busy.id, busy.text)
        doing = f"{text}; {doing}" if doing else text
    left = [item.text for item in shown.items if item.status is ItemStatus.WAITING]
    return msgspec.structs.replace(task, plan=shown, left=left, doing=doing)
