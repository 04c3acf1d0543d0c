"""Budgets in Postgres: each request to a model is reserved before it is made, and settled when its cost is known.

A reservation is keyed by the attempt, so a crash between it and the request repeats nothing, and one whose request
was made and whose cost nobody knows stays as it is. It stands before the attempt's intent: a crash in between leaves
at worst a reservation for a request that the next owner makes under the same key.

Children draw from their nearest ancestor with a budget, in blocks, and what they did not use is taken back when it is
needed and they have ended, however they ended. So what a task has lent is always the sum of what its children have drawn.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from outlive.infra import sql
from outlive.infra.database import patiently
from outlive.infra.records import Claim
from outlive.protocol import codec
from outlive.protocol.budget import Amount, Budget, Limits, said
from outlive.protocol.policy import read_policy

BLOCK: Final = 8
"""A child draws room for so many requests like the one it is about to make, if there is that much."""


class Shortage(NamedTuple):
    """A request that would exceed a budget: which one, of what, and how far it is used.

    Attributes:
        task_id: whose budget it is: the task's own, or that of an ancestor.
        what: tokens, money, steps or seconds.
        used, limit: as counted (money in millionths of a dollar).
        wanted: what the request was to reserve.
    """

    task_id: str
    what: str
    used: float
    limit: float
    wanted: float

    @property
    def message(self) -> str:
        """``budget used: 9,900 of 10,000 tokens``, and whose it is."""
        wanted = f"; the next request may take {self.wanted:,.0f}" if self.wanted else ""
        return f"{said(self.what, self.used, self.limit)} (task {self.task_id}){wanted}"


class _Input(msgspec.Struct):
    policy: msgspec.Raw = msgspec.Raw(b"{}")


class _Row:
    """One locked row, changed here and written back."""

    def __init__(self, found: Any) -> None:
        self.task_id, self.parent = found["task_id"], found["parent"]
        self.limits = Limits(found["tokens"], found["money"], found["steps"])
        self.drawn, self.used, self.lent = (Amount(*found[name]) for name in ("drawn", "used", "lent"))

    @property
    def spent(self) -> Amount:
        """By itself and, as far as is known here, by its children."""
        return self.used.plus(self.lent)

    def shortage(self, more: Amount) -> Shortage | None:
        """Say which own limit so much more would exceed."""
        what = self.spent.plus(more).exceeds(self.limits)
        if what is None:
            return None
        limit = getattr(self.limits, what)
        return Shortage(self.task_id, what, getattr(self.spent, what), limit, getattr(more, what))

    def need(self, more: Amount) -> Amount:
        """Return what must be drawn from the parent before so much more is spent."""
        return self.spent.plus(more).minus(self.drawn) if self.parent is not None else Amount()


class Budgets:
    """What the tasks of one worker may spend."""

    def __init__(self, pool: Any) -> None:
        """Work on this pool."""
        self._pool = pool
        self._sql = sql.load("budget")

    async def open(self, claim: Claim, declared: Budget) -> bool:
        """Take a task's place among the budgets. Returns whether some limit on the way to the root is one of money.

        Args:
            claim: the task.
            declared: by its code; its submit may have tightened it.
        """
        return await patiently(lambda: self._open(claim, declared))

    async def _open(self, claim: Claim, declared: Budget) -> bool:
        async with self._pool.acquire() as connection, connection.transaction():
            lineage = await connection.fetch(self._sql["lineage"], claim.tenant, claim.task_id)
            parent: str | None = None
            money = False
            for row in reversed(lineage):
                own = read_policy(codec.decode(bytes(codec.decode(row["input"], _Input).policy))).budget
                if row["task_id"] == claim.task_id:
                    own = declared.tightened(own)
                money = money or row["money"] is not None or own.money is not None
                if row["has"]:
                    parent = row["task_id"]
                elif own or row["task_id"] == claim.task_id:
                    await connection.execute(
                        self._sql["open"], claim.tenant, row["task_id"], parent, *own.limits, own.seconds
                    )
                    parent = row["task_id"]
            return money

    async def reserve(
        self, claim: Claim, request: tuple[str, int], model: str, amount: Amount, *, priced: bool
    ) -> Shortage | None:
        """Reserve for one request, durably, or say what is short. The same one again reserves nothing more.

        Args:
            claim: the task.
            request: its step and attempt.
            model: that is asked.
            amount: the most that it may use.
            priced: the model's price is known; else no money is counted.
        """
        return await patiently(lambda: self._reserve(claim, (*request, model, priced, list(amount)), amount))

    async def _reserve(self, claim: Claim, row: tuple[Any, ...], amount: Amount) -> Shortage | None:
        async with self._pool.acquire() as connection:
            try:
                async with connection.transaction():
                    if await connection.fetchval(self._sql["reserve"], claim.tenant, claim.task_id, *row):
                        await self._in_time(connection, claim)
                        await self._take(connection, claim.tenant, claim.task_id, amount, lend=False)
            except _Short as short:
                return short.shortage
        return None

    async def _in_time(self, connection: Any, claim: Claim) -> None:
        late = await connection.fetchrow(self._sql["late"], claim.tenant, claim.task_id)
        if late is not None:
            raise _Short(Shortage(late["task_id"], "seconds", late["elapsed"], late["seconds"], 0))

    async def _take(self, connection: Any, tenant: str, task_id: str, amount: Amount, *, lend: bool) -> None:
        """Spend or lend an amount; what the task has not drawn yet is drawn first. Raises `_Short`."""
        row = _Row(await connection.fetchrow(self._sql["lock"], tenant, task_id))
        if row.shortage(amount) is not None or any(row.need(amount)):
            await self._reclaim(connection, tenant, row)
        if (shortage := row.shortage(amount)) is not None:
            raise _Short(shortage)
        if row.parent is not None and any(need := row.need(amount)):
            row.drawn = row.drawn.plus(await self._draw(connection, tenant, row.parent, need))
        if lend:
            row.lent = row.lent.plus(amount)
        else:
            row.used = row.used.plus(amount)
        await self._write(connection, tenant, row)

    async def _draw(self, connection: Any, tenant: str, parent: str, need: Amount) -> Amount:
        """Take a block from the parent; the bare need, where a block is more than it has."""
        block = Amount(*(BLOCK * part for part in need))
        try:
            async with connection.transaction():
                await self._take(connection, tenant, parent, block, lend=True)
        except _Short:
            await self._take(connection, tenant, parent, need, lend=True)
            return need
        return block

    async def _reclaim(self, connection: Any, tenant: str, row: _Row) -> None:
        """Take back what children that have ended did not use: first of all from theirs."""
        for found in await connection.fetch(self._sql["ended_children"], tenant, row.task_id):
            child = _Row(found)
            await self._reclaim(connection, tenant, child)
            row.lent = row.lent.minus(child.drawn).plus(child.spent)
            child.drawn = child.spent
            await self._write(connection, tenant, child)

    async def _write(self, connection: Any, tenant: str, row: _Row) -> None:
        await connection.execute(
            self._sql["write"], tenant, row.task_id, list(row.drawn), list(row.used), list(row.lent)
        )

    async def settle(self, claim: Claim, step_id: str, attempt: int, amount: Amount) -> None:
        """Put what a request cost in the place of what was reserved for it; once."""
        row = (claim.tenant, claim.task_id, step_id, attempt, list(amount))
        await patiently(lambda: self._pool.execute(self._sql["settle"], *row))

    async def unsettled(self, claim: Claim) -> set[tuple[str, int]]:
        """Return the requests, by step and attempt, whose cost is not known yet."""
        rows: Any = await patiently(lambda: self._pool.fetch(self._sql["unsettled"], claim.tenant, claim.task_id))
        return {(row["step_id"], row["attempt"]) for row in rows}


class _Short(Exception):  # it only leaves a transaction
    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage.message)
        self.shortage = shortage


async def raise_limits(connection: Any, raises: Iterable[tuple[str, str, Budget]]) -> None:
    """Raise the limits of tasks, each with those that it draws from, where they are smaller: (tenant, task, to what)."""
    statement = sql.load("budget")["raise"]
    for tenant, task_id, budget in raises:
        await connection.execute(statement, tenant, task_id, *budget.limits, budget.seconds)
