"""Business identities: which step makes an action that has a name of its own.

A step takes the name before it sends, and keeps it. Whoever comes second reads, under the lock of the name's row, how
far the first one is: it has happened, it may happen, or it did not and never will. Only then the name changes hands.
The first one takes the name again before each attempt: so what was taken over is never sent by it as well.
"""

import asyncio
import uuid
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from outlive.infra import database, sql
from outlive.infra.records import Claim
from outlive.protocol import codec, steps
from outlive.protocol.task import FINAL, Failure

Standing = Literal["mine", "free", "refused", "under_way", "happened", "unknown"]
"""Of the step that has a name: this one; it did not send and will not, or what it did was undone; because a person said
no; it may; it did; nobody knows."""


class Name(NamedTuple):
    """An action's name, and the call that wants to make it."""

    tool: str
    scope: str  # a task's id; "" = the tenant
    name: str
    step_id: str
    operation_id: str
    digest: bytes


class Holder(NamedTuple):
    """The step that has a name, and how far it is."""

    standing: Standing
    task_id: str
    step_id: str
    digest: bytes
    arguments: bytes | None = None
    result: bytes | None = None  # of one that happened
    refusal: str = ""  # how a person said no to it ...
    refused_for: timedelta = timedelta(0)  # ... so long ago


class Identities:
    """The names that one worker's tasks take."""

    def __init__(self, pool: Any, incarnation: uuid.UUID) -> None:
        """Take names for tasks that this incarnation owns."""
        self._pool = pool
        self._incarnation = incarnation
        self._sql = sql.load("identity")

    async def claim(self, claim: Claim, wanted: Name, heed: timedelta) -> Holder:
        """Take a name for a step, or say who has it. What the step did before must be durable. Waits for Postgres.

        A name whose holder did not send is taken over, except where a person said no to the very same call less than
        `heed` ago.
        """
        while True:
            try:
                return await self._claim(claim, wanted, heed)
            except database.TRANSIENT:
                await asyncio.sleep(0.2)

    async def _claim(self, claim: Claim, wanted: Name, heed: timedelta) -> Holder:
        mine = Holder("mine", claim.task_id, wanted.step_id, wanted.digest)
        row = (self._incarnation, claim.tenant, claim.task_id, claim.epoch, *wanted, claim.last_seq)
        async with self._pool.acquire() as connection:
            if await connection.fetchval(self._sql["claim"], *row):
                return mine
            async with connection.transaction():
                held = await connection.fetchrow(self._sql["lock"], claim.tenant, *wanted[:3])
                if held is None:  # the task is not ours any more: its actor is told by the journal
                    return mine._replace(standing="under_way")
                undo = steps.undo(held["step_id"], held["operation_id"])
                found = await connection.fetchrow(self._sql["holder"], claim.tenant, *held[:3], held["since"], undo)
                holder = _holder(held, found)
                if holder.standing != "free":
                    return holder
                if holder.refusal and holder.digest == wanted.digest and holder.refused_for < heed:
                    return holder._replace(standing="refused")
                taken = await connection.fetchval(self._sql["take"], *row)
                return mine if taken else holder._replace(standing="under_way")


def _holder(held: Any, found: Any) -> Holder:
    place = (held["task_id"], held["step_id"], held["digest"])
    if found is None:  # its task was removed
        return Holder("free", *place)
    standing = stands(
        found["task"], found["operation"], found["step"], undo=found["undo"], undoing=bool(found["compensating"])
    )
    failure = codec.decode(found["body"], Failure) if found["step"] == "failed" and found["body"] else None
    return Holder(
        standing, *place, found["arguments"], found["body"] if standing == "happened" else None,
        failure.message if failure is not None and failure.type == "Rejected" else "", found["now"] - found["at"] if found["at"] is not None else timedelta(0),
    )  # fmt: skip


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
