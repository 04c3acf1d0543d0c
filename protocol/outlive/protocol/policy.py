"""What a submit may ask for beside its input: more care than the tools' own rules, never less.

Whether a tool waits for a yes is its author's rule (always, by its arguments, never). Only an operator switches such a
rule off, for a whole installation; whoever submits a task may only add to it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from outlive.protocol.budget import Budget

NO_BUDGET: Final = Budget()

_ALLOWED = (
    'allowed is {"requires_approval": true} (every effect), or a list of the names of tools, and {"budget": {"tokens": '
    '..., "money": ..., "steps": ..., "seconds": ...}}'
)


class Policy(NamedTuple):
    """A submit's policy, read.

    Attributes:
        every: every effect waits for a yes.
        tools: these tools wait for a yes, whatever their own rule says.
        budget: what the task and all that it starts may spend on models, at most.
    """

    every: bool = False
    tools: frozenset[str] = frozenset()
    budget: Budget = NO_BUDGET

    def asks(self, tool: str) -> bool:
        """True when an effect of this tool waits for a yes because of the submit."""
        return self.every or tool in self.tools

    def and_also(self, wanted: bool | Iterable[str]) -> "Policy":
        """Add what somebody else wants: True for every effect, or names of tools."""
        if isinstance(wanted, bool):
            return self._replace(every=self.every or wanted)
        return self._replace(tools=self.tools | frozenset(wanted))

    def stored(self) -> dict[str, Any]:
        """As the wire has it; ``{}`` where it asks for nothing."""
        stored: dict[str, Any] = {}
        if self.every or self.tools:
            stored["requires_approval"] = True if self.every else sorted(self.tools)
        if self.budget:
            stored["budget"] = msgspec.to_builtins(self.budget)
        return stored


class _Asked(Budget, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A limit under a name that is not known would limit nothing: it is refused."""


def read_budget(given: Any) -> Budget:
    """Read limits by name. Raises `msgspec.ValidationError`: an unknown name, or a number that limits nothing."""
    return Budget(**msgspec.structs.asdict(msgspec.convert(given, _Asked)))


def read_policy(given: Mapping[str, Any]) -> Policy:
    """Read a policy.

    Raises:
        ValueError: it has another key, or would loosen the tools' own rules; says what is allowed.
    """
    for key in given:
        if key not in {"requires_approval", "budget"}:
            raise ValueError(f"policy {key!r} is not known; {_ALLOWED}")
    try:
        budget = read_budget(given.get("budget", {}))
    except msgspec.ValidationError as error:
        raise ValueError(f"policy budget={given['budget']!r} cannot be used: {error}; {_ALLOWED}") from None
    wanted = given.get("requires_approval", ())
    if wanted is True:
        return Policy(every=True, budget=budget)
    if "requires_approval" in given and not wanted:
        raise ValueError(
            f"policy requires_approval={wanted!r} asks for less than the tools do: a submit may only tighten; {_ALLOWED}"
        )
    if not isinstance(wanted, list | tuple) or not all(isinstance(name, str) and name for name in wanted):
        raise ValueError(f"policy requires_approval={wanted!r} is not understood; {_ALLOWED}")
    return Policy(tools=frozenset(wanted), budget=budget)
