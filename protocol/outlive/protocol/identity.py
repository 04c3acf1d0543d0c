"""Business identity: how far the step is that has an action's name, and so whether another one may send. Pure."""

from typing import Literal, TypeAlias

from outlive.protocol.task import FINAL

Standing: TypeAlias = Literal["mine", "free", "refused", "under_way", "happened", "unknown"]
"""Of the step that has a name: this one; it did not send and will not, or what it did was undone; because a person said
no; it may; it did; nobody knows."""


def stands(
    task: str, operation: str | None, step: str | None, *, undo: str | None = None, undoing: bool = False
) -> Standing:
    """Say how far a step is that has a name.

    Args:
        task: its task's status.
        operation: its operation's status in the ledger; None: it has none yet.
        step: how the step ended since it took the name; None: it has not.
        undo: the status of the operation that undoes it; None: it was not begun.
        undoing: what its task did is being undone, or was.
    """
    over = step is not None or task in FINAL
    match operation:
        case "succeeded" if undo == "succeeded":
            return "free"
        case "succeeded" if undoing and task not in FINAL:
            return "under_way"  # it may not last
        case "succeeded" if undo in {"started", "unknown"}:
            return "unknown"
        case "succeeded":
            return "happened" if step == "completed" else "unknown"  # it happened, but its result is not known
        case "started" | "unknown":
            return "unknown" if over else "under_way"
        case _:
            return "free" if over else "under_way"
