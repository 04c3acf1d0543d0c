"""What requests to models may cost and have cost: reserved before they are made, settled when it is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias

from genai_prices import Usage as PricedUsage
from genai_prices import calc_price

from outlive.actors.agents.decisions import Usage
from outlive.infra.budgets import Budgets, Shortage
from outlive.infra.records import Claim
from outlive.protocol.budget import MILLIONTHS, Amount, Budget

Prices: TypeAlias = Mapping[str, tuple[float, float]]
"""By model as configured: US dollars for a million tokens in, and out."""


def cost(model: str, usage: Usage, prices: Prices) -> int | None:
    """Return what a request costs in millionths of a dollar; None when nobody knows the model's price."""
    if model in prices:
        into, out = prices[model]
        return round(usage.input * into + usage.output * out)
    provider, _, name = model.rpartition(":")
    used = PricedUsage(
        input_tokens=usage.input, output_tokens=usage.output, cache_read_tokens=min(usage.cached, usage.input)
    )
    try:
        found: Any = calc_price(used, model_ref=name, provider_id=provider or None)
    except LookupError:
        return None
    return int(Decimal(found.total_price) * MILLIONTHS)


@dataclass(frozen=True, slots=True)
class Unpriced:
    """Money is limited, and nobody knows what the model costs."""

    model: str
    what = "money"

    @property
    def message(self) -> str:
        """What to do about it."""
        return (
            f"the price of model {self.model} is not known, so its budget of money cannot be kept: deploy the agent with "
            f"prices={{{self.model!r}: (DOLLARS_IN, DOLLARS_OUT)}} a million tokens, then resume"
        )


@dataclass(slots=True)
class Spending:
    """One task's requests, counted against its budget and those of the tasks that it belongs to.

    Attributes:
        budgets: in Postgres.
        claim: the task.
        declared: the agent's own budget.
        prices: where they are other than published.
    """

    budgets: Budgets
    claim: Claim
    declared: Budget
    prices: Prices
    _money: bool | None = None  # some limit is one of money; None: not begun
    _open: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    async def begin(self) -> None:
        """Take the task's place among the budgets; requests of earlier incarnations may wait to be settled."""
        self._money = await self.budgets.open(self.claim, self.declared)
        self._open = await self.budgets.unsettled(self.claim)

    async def reserve(self, step_id: str, attempt: int, model: str, usage: Usage) -> Shortage | Unpriced | None:
        """Reserve for a request that may use so much, or say what is short."""
        price = cost(model, usage, self.prices)
        if price is None and self._money:
            return Unpriced(model)
        amount = Amount(usage.tokens, price or 0, 1)
        self._open.add((step_id, attempt))
        return await self.budgets.reserve(self.claim, (step_id, attempt), model, amount, priced=price is not None)

    async def settle(self, step_id: str, attempt: int, model: str, usage: Usage) -> None:
        """Put what a request has cost in the place of what was reserved for it."""
        if (step_id, attempt) in self._open:
            self._open.discard((step_id, attempt))
            amount = Amount(usage.tokens, cost(model, usage, self.prices) or 0, 1)
            await self.budgets.settle(self.claim, step_id, attempt, amount)

    async def nothing(self, step_id: str, attempt: int) -> None:
        """A request was refused before it cost anything."""
        if (step_id, attempt) in self._open:
            self._open.discard((step_id, attempt))
            await self.budgets.settle(self.claim, step_id, attempt, Amount())
