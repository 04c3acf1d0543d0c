"""What a task did to the world, told when it is cancelled: each effect, and what became of it. Pure.

The last event of a cancel carries it as data (`Effects`), and as a sentence (`cancel_message`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from outlive.protocol import keys, steps
from outlive.protocol.operations import OperationStatus

EffectOutcome: TypeAlias = Literal[
    "undo_failed", "undo_unknown", "unknown", "happened", "undone", "not_approved", "did_not_happen"
]
"""What became of an effect, what a person should look at first. ``happened``: it stays."""

MOST: Final = 100
"""Effects that one event lists by name; all are counted."""

_NAMED: Final = 20
"""Effects of one outcome that a sentence names."""

_DETAIL: Final = 300

Key: TypeAlias = tuple[str, str]
"""(step id, operation id)."""


class Entry(NamedTuple):
    """What the ledger says of one operation."""

    step_id: str
    operation_id: str
    name: str
    status: str
    note: str = ""


class EffectSummary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One effect of a cancelled task.

    Attributes:
        step_id, operation_id: which; as in the ledger.
        name: of the tool.
        outcome: what became of it.
        detail: why it stays, or could not be undone.
    """

    step_id: str
    operation_id: str
    name: str
    outcome: EffectOutcome
    detail: str = ""


class Effects(msgspec.Struct, frozen=True, kw_only=True):
    """All effects of a cancelled task.

    Attributes:
        counts: how many there are of each outcome; all of them are counted.
        listed: at most 100: those that a person should look at first, each outcome in the order begun.
    """

    counts: dict[EffectOutcome, int]
    listed: list[EffectSummary]

    def of(self, outcome: EffectOutcome) -> list[EffectSummary]:
        """Return those of one outcome that are listed."""
        return [effect for effect in self.listed if effect.outcome == outcome]


_OUTCOMES: Final[Mapping[str, EffectOutcome]] = {
    OperationStatus.SUCCEEDED: "happened",
    OperationStatus.STARTED: "unknown",
    OperationStatus.UNKNOWN: "unknown",
    OperationStatus.FAILED: "did_not_happen",
    OperationStatus.AWAITING_APPROVAL: "not_approved",
    OperationStatus.PREPARED: "did_not_happen",
}
_UNDONE: Final[Mapping[str, EffectOutcome]] = {
    OperationStatus.SUCCEEDED: "undone",
    OperationStatus.STARTED: "undo_unknown",
    OperationStatus.UNKNOWN: "undo_unknown",
    OperationStatus.FAILED: "undo_failed",
}
_ORDER: Final[Sequence[EffectOutcome]] = (
    "undo_failed", "undo_unknown", "unknown", "happened", "undone", "not_approved", "did_not_happen",
)  # fmt: skip
_WORDS: Final[Mapping[EffectOutcome, str]] = {
    "happened": "Happened",
    "undone": "Undone",
    "undo_failed": "Could not be undone",
    "undo_unknown": "Unknown whether it was undone",
    "unknown": "Unknown whether it happened",
    "did_not_happen": "Did not happen",
    "not_approved": "Not sent, nobody said yes",
}
_TOLD: Final[Sequence[EffectOutcome]] = tuple(_WORDS)


def summarize(ledger: Sequence[Entry], details: Mapping[Key, str] | None = None) -> Effects:
    """Put the ledger of a task together: an operation that undid another one is told with that.

    Args:
        ledger: all operations, in the order begun.
        details: what is known besides, by step and operation of the effect.
    """
    undoing = {one.step_id: one.status for one in ledger if steps.is_undo(one.step_id)}
    effects: dict[EffectOutcome, list[EffectSummary]] = {outcome: [] for outcome in _ORDER}
    counts: dict[EffectOutcome, int] = {}
    for one in ledger:
        if steps.is_undo(one.step_id) or keys.is_request(one.name):
            continue
        outcome = outcome_of(one, undoing.get(steps.undo(one.step_id, one.operation_id)))
        counts[outcome] = counts.get(outcome, 0) + 1
        if len(effects[outcome]) < MOST:
            detail = ((details or {}).get((one.step_id, one.operation_id)) or one.note)[:_DETAIL]
            effects[outcome].append(
                EffectSummary(
                    step_id=one.step_id, operation_id=one.operation_id, name=one.name, outcome=outcome, detail=detail
                )
            )
    listed = [effect for outcome in _ORDER for effect in effects[outcome]]
    return Effects(counts=counts, listed=listed[:MOST])


def outcome_of(one: Entry, undo: str | None = None) -> EffectOutcome:
    """Say what became of one operation; `undo` is the status of the one that was to undo it, where it was begun."""
    outcome = _OUTCOMES[one.status]
    return outcome if undo is None or outcome != "happened" else _UNDONE.get(undo, outcome)


def cancel_message(by: str | None, effects: Effects, *, compensated: bool = False) -> str:
    """Say honestly what a cancelled task did, and what of it was undone.

    Args:
        by: who cancelled it.
        effects: what became of each effect.
        compensated: it was to be undone.
    """
    said = [f"Cancelled by {by}." if by else "Cancelled.", "Nothing further was started."]
    if not effects.counts.keys() & {"happened", "undone", "undo_failed", "undo_unknown"}:
        said.append("No effect is recorded as having happened.")
    for outcome in _TOLD:
        if count := effects.counts.get(outcome, 0):
            words = "Stays" if compensated and outcome == "happened" else _WORDS[outcome]
            said.append(f"{words}: {_some(effects.of(outcome), count)}.")
    return " ".join(said)


def _some(effects: Iterable[EffectSummary], count: int) -> str:
    names = [_named(effect) for effect in effects][:_NAMED]
    more = f" and {count - len(names)} more" if count > len(names) else ""
    return f"{', '.join(names)}{more}" if names else f"{count} effects"


def _named(effect: EffectSummary) -> str:
    number = "" if effect.operation_id == "1" else f":{effect.operation_id}"
    detail = f": {effect.detail}" if effect.detail else ""
    return f"{effect.name} (step {effect.step_id}{number}{detail})"
