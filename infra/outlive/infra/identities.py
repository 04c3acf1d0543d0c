"""Business identities: which step makes an action that has a name of its own.

A step takes the name before it sends, and keeps it. Whoever comes second reads, under the lock of the name's row, how
far the first one is: it has happened, it may happen, or it did not and never will. Only then the name changes hands.
The first one takes the name again before each attempt: so what was taken over is never sent by it as well.
"""

import uuid
from datetime import timedelta
from typing import Any, NamedTuple

from outlive.infra import sql
from outlive.infra.database import patiently
from outlive.infra.records import Claim
from outlive.protocol import codec, steps
from outlive.protocol.identity import Standing, stands
from outlive.protocol.task import Failure


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
        return await patiently(lambda: self._claim(claim, wanted, heed))

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
