"""Plans: what a task means to do, item by item, and how far each item is.

A plan is a fact with a version; a change is a new fact with the next version. An item's status follows from the steps
that belong to it, and from nothing that anybody says of it.
"""

import enum
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from outlive.protocol import ids

ITEMS_LIMIT: Final = 200
"""The most items of a plan."""

TEXT_LENGTH: Final = 1000
"""Characters of an item's text, and of a plan's note."""

SIZE_LIMIT: Final = 128 * 1024
"""Bytes of all items as JSON."""

_OPEN: Final = frozenset({"started", "waiting"})
_DONE: Final = frozenset({"completed", "skipped"})
_SHOWN: Final = 20
_DROPPED: Final = 50


class PlanInvalid(ValueError):
    """A plan breaks its rules; the message names every rule that it breaks, and the item."""


class ItemStatus(enum.StrEnum):
    """How far an item is: no step yet, one that has not ended, or how the last one ended; dropped by a later plan."""

    WAITING = "waiting"
    DOING = "doing"
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing to do.

    Attributes:
        id: names it in steps and edits, and stays when the plan changes; the rule for ids holds.
        text: what is to be done, 1 to 1,000 characters.
        after: ids of the items that should be done first.
    """

    id: str
    text: str
    after: list[str] = []


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task means to do. Raises `PlanInvalid` when it is made from items that `check` refuses.

    Attributes:
        version: 1 for the first plan of a run, one more with each change.
        items: 1 to 200, in the order in which they are meant.
        note: why it is so, or why it was changed.
        by: who made it: a person's name, "model", or null for the task's own code.
    """

    version: int
    items: list[Item]
    note: str = ""
    by: str | None = None

    def __post_init__(self) -> None:
        check(self.items)
        if self.version < 1:
            raise PlanInvalid(f"version {self.version} of a plan: versions begin with 1")

    def item(self, item_id: str | None) -> Item | None:
        """Return the item of this id, if the plan has it."""
        return next((item for item in self.items if item.id == item_id), None)


class PlannedItem(Item, frozen=True, omit_defaults=True):
    """An item, and how far it is."""

    status: ItemStatus = ItemStatus.WAITING


class PlanRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's plan as it stands. Items that a later plan has dropped come last."""

    version: int
    items: list[PlannedItem]
    note: str = ""
    by: str | None = None


def check(items: Sequence[Item]) -> None:
    """Raise `PlanInvalid` unless these may be a plan's items; the message names all that is wrong with them."""
    if not 1 <= len(items) <= ITEMS_LIMIT:
        raise PlanInvalid(f"a plan has 1 to {ITEMS_LIMIT} items, this one has {len(items)}")
    if wrong := [*_ids(items), *_texts(items), *_order(items)]:
        raise PlanInvalid("; ".join(wrong[:_SHOWN]))
    if (size := len(msgspec.json.encode(items))) > SIZE_LIMIT:
        raise PlanInvalid(f"the items have {size:,} bytes as JSON, {SIZE_LIMIT:,} are allowed: shorten their texts")


def _ids(items: Sequence[Item]) -> Iterable[str]:
    seen: set[str] = set()
    for item in items:
        try:
            ids.check("item", item.id)
        except ids.InvalidId as error:
            yield str(error)
        if item.id in seen:
            yield f"item {item.id!r} comes twice: give each its own id"
        seen.add(item.id)


def _texts(items: Sequence[Item]) -> Iterable[str]:
    for item in items:
        if not 1 <= len(item.text) <= TEXT_LENGTH or "\0" in item.text:
            yield f"the text of item {item.id!r} has {len(item.text)} characters: give 1 to {TEXT_LENGTH}, no NUL"


def _order(items: Sequence[Item]) -> Iterable[str]:
    known = {item.id for item in items}
    for item in items:
        for other in item.after:
            if other not in known:
                yield f"item {item.id!r} comes after {other!r}, which the plan does not have"
    if circle := _circle(items, known):
        yield f"items {', '.join(circle)} wait for each other: none of them could begin"


def _circle(items: Sequence[Item], known: set[str]) -> list[str]:
    """Return what is left when every item that waits for nothing is taken away, again and again."""
    left = {item.id: {other for other in item.after if other in known} for item in items}
    while free := [name for name, before in left.items() if not before & left.keys()]:
        for name in free:
            del left[name]
    return list(left)


def statuses(plan: Plan, steps: Iterable[tuple[str | None, str]], current: str | None = None) -> dict[str, ItemStatus]:
    """Derive how far each item of a plan is.

    Args:
        plan: the plan.
        steps: of each step, the item that it belongs to and its last status (as in step events), in the order of these
            last words; steps of other items, or of none, are passed over.
        current: the item at which the task's code is, though no step of it may be open at the moment.
    """
    found = {item.id: ItemStatus.WAITING for item in plan.items}
    busy = {current}
    for item, status in steps:
        if item not in found:
            continue
        if status in _OPEN:
            busy.add(item)
        else:
            found[item] = ItemStatus.DONE if status in _DONE else ItemStatus.FAILED
    return {item: ItemStatus.DOING if item in busy else status for item, status in found.items()}


def record(
    plans: Sequence[Plan], steps: Iterable[tuple[str | None, str]], current: str | None = None
) -> PlanRecord | None:
    """Return the last of a task's plans with the status of each item; None without a plan. Arguments as `statuses`."""
    if not plans:
        return None
    plan = plans[-1]
    found = statuses(plan, steps, current)
    dropped = {item.id: item for earlier in plans[:-1] for item in earlier.items if item.id not in found}
    items = [_planned(item, found[item.id]) for item in plan.items]
    items += [_planned(item, ItemStatus.DROPPED) for item in [*dropped.values()][-_DROPPED:]]
    return PlanRecord(version=plan.version, items=items, note=plan.note, by=plan.by)


def _planned(item: Item, status: ItemStatus) -> PlannedItem:
    return PlannedItem(item.id, item.text, item.after, status)


def number(plan: Plan | None, item: str | None) -> int:
    """Return the place of an item in a plan, from 1; 0 where it has none."""
    items: Sequence[Any] = plan.items if plan is not None and item is not None else ()
    return next((n for n, each in enumerate(items, 1) if each.id == item), 0)


def progress_text(plan: Plan | None, item: str | None, title: str) -> str:
    """Say what is done for an item: ``step 3 of 7: reading contract-12.pdf``; the title alone where it has no place."""
    n = number(plan, item)
    return f"step {n} of {len(plan.items)}: {title}" if plan is not None and n else title
