"""What a tree of tasks may spend on models: limits, amounts, and the sentence that says how far it is. Pure."""

from decimal import Decimal
from typing import Annotated, Final, NamedTuple

import msgspec

MILLIONTHS: Final = 1_000_000
"""Money is counted in millionths of a US dollar."""

_Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]
_Dollars = Annotated[float, msgspec.Meta(gt=0, le=10**9)]


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Limits of a task and all that it starts; None = no limit.

    Attributes:
        tokens: of requests to models, in and out.
        money: US dollars.
        steps: decisions of models.
        seconds: from the first decision on, by the database's clock, waits included.
    """

    tokens: _Count | None = None
    money: _Dollars | None = None
    steps: _Count | None = None
    seconds: Annotated[float, msgspec.Meta(gt=0)] | None = None

    def __bool__(self) -> bool:
        """False when it limits nothing."""
        return any(limit is not None for limit in (self.tokens, self.money, self.steps, self.seconds))

    def tightened(self, other: "Budget") -> "Budget":
        """Return the smaller of each limit."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in self.__struct_fields__}
        least = {name: min((x for x in pair if x is not None), default=None) for name, pair in pairs.items()}
        return Budget(**least)

    @property
    def limits(self) -> "Limits":
        """As they are counted."""
        return Limits(self.tokens, None if self.money is None else round(self.money * MILLIONTHS), self.steps)


class Limits(NamedTuple):
    """The most that may be spent of each; None = no limit."""

    tokens: int | None = None
    money: int | None = None
    steps: int | None = None


class Amount(NamedTuple):
    """What is spent, reserved or lent: tokens, millionths of a dollar, decisions."""

    tokens: int = 0
    money: int = 0
    steps: int = 0

    def plus(self, other: "Amount") -> "Amount":
        """Return the sum."""
        return Amount(*(one + more for one, more in zip(self, other, strict=True)))

    def minus(self, other: "Amount") -> "Amount":
        """Return the difference, nowhere below nothing."""
        return Amount(*(max(0, one - less) for one, less in zip(self, other, strict=True)))

    def exceeds(self, limits: Limits) -> str | None:
        """Name the first limit that this is above."""
        pairs = zip(self._fields, self, limits, strict=True)
        return next((name for name, used, limit in pairs if limit is not None and used > limit), None)


def said(what: str, used: float, limit: float) -> str:
    """Say how far a budget is used: ``budget used: 9,900 of 10,000 tokens``."""
    if what == "money":
        shown, most = (f"{Decimal(round(x)) / MILLIONTHS:.2f}" for x in (used, limit))
        return f"budget used: {shown} of {most} dollars"
    return f"budget used: {used:,.0f} of {limit:,.0f} {what}"
