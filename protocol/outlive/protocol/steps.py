"""Step ids inside a durable function: a branch path plus a count within it.

A call takes its place when it is made: ``3`` is the third call of the main branch, ``4-2-1`` the first call in the
second branch of the gather that took place 4. The same code gives the same ids on every run.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from outlive.protocol import ids

_DIGEST_LENGTH: Final = 24


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
    return _fit("-".join(filter(None, parts)))


def _fit(step_id: str) -> str:
    if len(step_id) <= ids.ID_LENGTH:
        return step_id
    digest = hashlib.blake2b(step_id.encode(), digest_size=_DIGEST_LENGTH // 2).hexdigest()
    return f"{step_id[: ids.ID_LENGTH - _DIGEST_LENGTH - 1]}-{digest}"
