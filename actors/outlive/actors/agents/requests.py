"""A request to a model as a durable step: reserved, intended, made, settled; paid once when its answer is stored.

Its operation stands in the ledger like any effect: an intent before, every attempt recorded. A lost answer is sent again
(providers keep no idempotency keys, so the lost one may have been paid), and what that one cost is not known.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from outlive.actors.agents import models
from outlive.actors.agents.decisions import Usage
from outlive.actors.agents.spending import Spending
from outlive.actors.agents.versions import Version, audited, describe
from outlive.actors.effect import Effect
from outlive.actors.flow import Flow
from outlive.actors.history import OPERATION
from outlive.actors.reactions import Reaction
from outlive.infra.records import Record, State
from outlive.protocol import codec
from outlive.protocol.arguments import Arguments
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Reason, ReasonCode
from outlive.protocol.tools import AnyTool, RetryPolicy, Tool

R = TypeVar("R")

_FREE: Final = frozenset({
    ErrorClass.RATE_LIMITED, ErrorClass.NOT_SENT, ErrorClass.INVALID_ARGUMENTS, ErrorClass.PERMISSION_DENIED,
})  # fmt: skip
"""Errors of requests that were turned away: they cost nothing. What any other has cost is not known."""


class Asking(Tool[..., R]):
    """The request to a model as a tool: recognised by its place and name alone, so that a changed prompt is no other step.

    A request changes nothing but the bill: when its answer is lost it is made again, and the lost one is an attempt
    whose cost nobody knows.
    """

    __slots__ = ()

    def digest(self, encoded: bytes) -> bytes:  # noqa: ARG002  # what is asked may change, where it is asked may not
        """Return the digest of its name."""
        return codec.digest(self.name.encode())


def request_tool(
    name: str,
    ask: Callable[..., Awaitable[Any]],
    recorded: Mapping[str, Any],
    *,
    result_type: Any,
    title: str,
    timeout: float,
    retries: RetryPolicy,
) -> Asking[Any]:
    """Return a tool whose call is one request to a model.

    Args:
        name: of the step, the same on every run (`outlive.protocol.keys.request_name`).
        ask: makes the request, called once per attempt with the operation and what is recorded. What it returns is stored.
        recorded: what the ledger says of a request besides ``model`` and ``prompt``: names with types.
        result_type: a type that can be stored.
        title: what people read.
        timeout: seconds for one attempt.
        retries: how errors that may pass are met.
    """
    types = {"model": str, "prompt": str, **recorded}
    signature = inspect.Signature(
        [inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, annotation=of) for each, of in types.items()]
    )
    return Asking(
        name=name, fn=ask, arguments=Arguments(name, signature), result_type=result_type, read_only=False, idempotent=True,
        takes_operation=True, is_async=True, title=title, timeout=timeout, retries=retries, classify=models.error_class,
    )  # fmt: skip


class Request(Effect[R]):
    """The request to a model as a step."""

    __slots__ = ("_before", "_most", "_now", "_spending", "_told")

    def __init__(
        self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any], *, before: Version | None,
        spending: Spending, most: Usage,
    ) -> None:  # fmt: skip
        """See `Effect`; `before` is what the last one was made with, `most` what this one may use."""
        super().__init__(flow, step_id, tool, bound)
        self._before = before
        self._now = Version(bound["model"], bound["prompt"], "")
        self._spending = spending
        self._most = most
        self._told = False

    def told(self, value: R) -> str:
        """What people read of an answer: the request's title, and another version than before."""
        return f"{super().told(value)}{self.changed(self._now)}"

    def changed(self, now: Version) -> str:
        """Say what is another version than before; empty: nothing."""
        return "" if self._before is None or self._before.same(now) else f" ({describe(self._before, now)})"

    def _wants(self) -> bool:
        """Who has every effect wait for a yes does not mean this: it is none. By its name it may be held back, too."""
        return self.tool.name in self.flow.history.policy.tools

    def rests(self) -> Record:
        """The beginning of the intent: the task's row has the version; the audit trail names both where it is another one."""
        record, before, now = super().rests(), self._before, self._now
        if (before is not None and before.same(now)) or self._told or self._intended_as(now):
            return record
        self._told = True
        record.state = State(model_version=now.model, prompt_version=now.prompt)
        if before is not None:
            record.answers = (*record.answers, audited(self.flow.claim, before, now))
        return record

    def _intended_as(self, now: Version) -> bool:
        """True when an earlier incarnation has intended it with this version: then it has told that, too."""
        intended = self.flow.history.operations.get((self.step_id, OPERATION))
        asked: dict[str, Any] = codec.decode(intended.arguments or b"{}") if intended is not None else {}
        return (asked.get("model"), asked.get("prompt")) == (now.model, now.prompt)

    async def _intend(self) -> None:
        """Reserve before the intent: whatever dies from here on, at least what was used is counted."""
        short = await self._spending.reserve(self.step_id, self.attempt, self._now.model, self._most)
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

    async def settle(self, model: str, usage: Usage) -> None:
        """Put what the answer has cost in the place of what was reserved; where it tells nothing, that counts."""
        if usage.tokens:
            recorded = self.flow.history.done.get(self.step_id)
            attempt = recorded.attempt if recorded is not None and recorded.attempt else self.attempt
            await self._spending.settle(self.step_id, attempt, model, usage)
