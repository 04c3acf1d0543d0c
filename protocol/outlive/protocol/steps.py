"""Step ids inside a durable function: a branch path plus a count within it.

A call takes its place when it is made: ``3`` is the third call of the main branch, ``4-2-1`` the first call in the
second branch of the gather that took place 4. The same code gives the same ids on every run.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

from outlive.protocol import ids

ANSWER: Final = "answer-"
"""How the names of signals begin that answer a question of a step; tasks declare none of these."""

_DIGEST_LENGTH: Final = 24
_COUNTED: Final = re.compile(r"\d|r\d+-|undo\d*-")
_UNDO: Final = re.compile(r"undo\d*-")


def place(path: str | Sequence[int], n: int, *, run: int = 1) -> str:
    """Return the step id of the n-th call (from 1) of a branch.

    Args:
        path: the branch: ``""`` or ``()`` for the main one, ``(4, 2)`` or ``"4-2"`` for the second branch of place 4.
        n: the count within the branch.
        run: the task's run; after a restart its ids begin with it (``r2-3``).

    Returns:
        A valid id; when it would be longer than 64 characters, its tail is a hash of the whole.
    """
    parts = (f"r{run}" if run > 1 else "", path if isinstance(path, str) else "-".join(map(str, path)), str(n))
    return fit("-".join(filter(None, parts)))


def fit(step_id: str) -> str:
    """Return a step id that is not too long: its tail becomes a hash of the whole."""
    if len(step_id) <= ids.ID_LENGTH:
        return step_id
    digest = hashlib.blake2b(step_id.encode(), digest_size=_DIGEST_LENGTH // 2).hexdigest()
    return f"{step_id[: ids.ID_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"


def answer_signal(step_id: str) -> str:
    """Return the name of the signal that answers the question of a step: ``answer-4``."""
    return fit(f"{ANSWER}{step_id}")


def is_answer(signal: str | None) -> bool:
    """True for the name of a signal that answers a question of a step."""
    return signal is not None and signal.startswith(ANSWER)


def chosen(step_id: str, *, run: int = 1) -> str:
    """Return the id of a step that was named by the user, in this run of the task."""
    return step_id if run == 1 else fit(f"r{run}-{step_id}")


def check_chosen(step_id: str) -> str:
    """Return a step id that a user may choose.

    Raises:
        ids.InvalidId: it breaks the rule for ids, or looks like one that is given by the system.
    """
    ids.check("step_id", step_id)
    if _COUNTED.match(step_id):
        raise ids.InvalidId(
            f"step_id {step_id!r} looks like one of ours (3, 4-2-1, r2-3, undo-4): begin it with another word"
        )
    return step_id


def undo(step_id: str, operation_id: str) -> str:
    """Return the id of the step that undoes an operation: ``undo-4`` for ``4:1``, ``undo2-4`` for ``4:2``."""
    return fit(f"undo{'' if operation_id == '1' else operation_id}-{step_id}")


def is_undo(step_id: str) -> bool:
    """Say whether a step undoes another one."""
    return _UNDO.match(step_id) is not None
