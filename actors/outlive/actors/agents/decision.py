"""The request to a model as a step: reserved, intended, made, settled."""

from collections.abc import Mapping
from typing import Any, Final

from outlive.actors.agents.decisions import Call, Decided, Usage
from outlive.actors.agents.reading import Ability
from outlive.actors.agents.spending import Spending
from outlive.actors.agents.versions import Version, describe
from outlive.actors.effect import Effect
from outlive.actors.failures import printable
from outlive.actors.flow import Flow
from outlive.actors.history import call_text
from outlive.actors.reactions import Reaction
from outlive.infra.records import AnswerRow, Record
from outlive.protocol import codec
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Reason, ReasonCode
from outlive.protocol.tools import AnyTool

_FREE: Final = frozenset({
    ErrorClass.RATE_LIMITED, ErrorClass.NOT_SENT, ErrorClass.INVALID_ARGUMENTS, ErrorClass.PERMISSION_DENIED,
})  # fmt: skip
"""Errors of requests that were turned away: they cost nothing. What any other has cost is not known."""


class Decision(Effect[Decided]):
    """The request to a model as a step."""

    __slots__ = ("_before", "_model", "_most", "_spending", "_tools")

    def __init__(
        self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any], before: Version | None,
        spending: Spending, most: Usage, tools: Mapping[str, Ability],
    ) -> None:  # fmt: skip
        """See `Effect`; `before` is what the last decision was made with, `most` what this request may use, `tools` the agent's."""
        super().__init__(flow, step_id, tool, bound)
        self._before = before
        self._spending = spending
        self._model: str = bound["model"]
        self._most = most
        self._tools = tools

    def told(self, value: Decided) -> str:
        """Say what was decided."""
        parts = ["a plan"] if value.plan is not None else []
        parts += [self._call(call) for call in value.calls[:3]]
        parts += [f"{len(value.calls) - 3} more calls"] if len(value.calls) > 3 else []
        parts += ["a question to a person"] if value.question is not None else []
        parts += [f"to look at step {recall.step} again" for recall in value.recalls]
        parts += ["the goal is reached"] if value.finished else []
        now = Version(value.model, value.prompt, "")
        changed = "" if self._before is None or self._before.same(now) else f" ({describe(self._before, now)})"
        useless = f"nothing of use: {'; '.join(value.problems)[:200]}" if value.problems else "nothing of use"
        return printable(f"Decided{changed}: {', '.join(parts) or useless}")

    def _call(self, call: Call) -> str:
        tool = self._tools.get(call.tool)
        order = tuple(tool.arguments.signature.parameters) if tool is not None else ()
        return call_text(call.tool, codec.encode(call.arguments), order)

    def rests(self) -> Record:
        """The beginning of the intent: where the version is another one than before, the audit trail names both."""
        record, before = super().rests(), self._before
        now = Version(self._model, str(self.bound["prompt"]), "")
        if before is None or before.same(now) or self.attempt > 1:
            return record
        row = AnswerRow(
            -self.flow.claim.last_seq - 1, "applied", describe(before, now), who=f"agent {self.flow.claim.kind}",
            what="version", before=f"{before.model} {before.prompt[:8]}", after=f"{now.model} {now.prompt[:8]}",
        )  # fmt: skip  # no inbox row has that place: a line of the audit
        record.answers = (*record.answers, row)
        return record

    async def _intend(self) -> None:
        """Reserve before the intent: whatever dies from here on, at least what was used is counted."""
        short = await self._spending.reserve(self.step_id, self.attempt, self._model, self._most)
        if short is not None:
            do = f"outlive resume {self.flow.claim.task_id} --raise-budget {short.what}=N"
            now = self.flow.world.clock.now()
            raise self.flow.suspend(
                Reason(reason=ReasonCode.BUDGET, since=now, step_id=self.step_id, do=do, message=short.message)
            )
        await super()._intend()

    async def follow(self, reaction: Reaction, error: BaseException) -> None:
        """As for any effect; a request that was turned away gives its reservation back."""
        if self.error_class(error) in _FREE:
            await self._spending.nothing(self.step_id, self.attempt)
        await super().follow(reaction, error)
