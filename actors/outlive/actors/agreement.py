"""`task.approve_all`: one question about several calls; each of them then uses its part of the answer, once.

The answer is a fact of this step, by call: place and digest. A call that begins looks for its part; the intent that
rests on it is durable in the same transaction as its `used`, as for a yes of its own. Whether a part was used, the
ledger says: until then the call's operation is `prepared`.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from outlive.actors.consent import Consented, taken
from outlive.actors.failures import column
from outlive.actors.flow import Flow
from outlive.actors.history import AGREED, OPEN, OPERATION, REJECTED, Part
from outlive.actors.step import ToolStep
from outlive.actors.waiting import Waiting
from outlive.infra import happenings
from outlive.infra.claims import Mail, StoredFact
from outlive.infra.clerk import read_command
from outlive.infra.records import OperationRow, Record
from outlive.protocol import codec
from outlive.protocol.commands import Approve, Reject
from outlive.protocol.events import ApprovalStatus
from outlive.protocol.task import Reason, ReasonCode

MOST: Final = 1000
"""Calls of one question."""

_AT_ONCE: Final = 8
_LENGTH: Final = 2000
_SHOWN: Final = 200


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is stored of the answer.

    Attributes:
        status: given, refused or expired.
        message: of a no.
        by: who said it.
        calls: the step and the digest of each call that it is about.
    """

    status: ApprovalStatus
    message: str = ""
    by: str | None = None
    calls: list[tuple[str, str]] = []


class ApproveAll(Waiting[bool]):
    """A question about calls that have taken their places and were not awaited yet."""

    def __init__(self, flow: Flow, step_id: str, calls: Sequence[Any]) -> None:
        """See `Task.approve_all`. It is recognised by all calls: their places and digests."""
        self.name = f"approve_all of {len(calls)}"  # the blank tells it from a tool
        self._calls = _checked(flow, calls)
        named = [(call.step_id, call.digest.hex()) for call in self._calls]
        super().__init__(flow, step_id, codec.digest(b"approve_all", codec.encode(named)))

    def stored(self, fact: StoredFact) -> bool:
        """Hand the parts of the stored answer out again; of a result that a person gave (`skip`) there are none."""
        try:
            answer = codec.decode(fact.body or b"null", Answer)
        except msgspec.ValidationError:
            return codec.decode(fact.body or b"null") is True
        return self._hand_out(answer)

    async def perform(self, earlier: StoredFact | None) -> bool:
        """Ask unless it was asked, and wait for the answer."""
        asking = self._asking(earlier)
        if not asking:
            answer = Answer(status="given")
            self._end("completed", f"None of {len(self._calls)} calls waits for a yes", codec.encode(answer))
            return True
        previews = await _previews(asking) if earlier is None else []
        until = self.flow.world.clock.now() + timedelta(seconds=min(call.tool.approval_ttl for call in asking))
        reason = self._reason(asking, previews, until)

        def asked() -> Record:
            shown = zip(asking, previews, strict=False)
            return Record(
                facts=(self._fact("waiting", reason.message[:500]), self._approval("asked", reason.message)),
                operations=[_row(call, "awaiting_approval", preview) for call, preview in shown], point="question",
                current_step=self.step_id,
            )  # fmt: skip

        while True:
            letter = await self.flow.consult(self.step_id, reason, asked)
            command = read_command(letter) if letter is not None else None
            if letter is None or isinstance(command, Approve | Reject):
                return self._answered(asking, letter, command)

    def _asking(self, earlier: StoredFact | None) -> list[Consented[Any]]:
        """The calls that the question is about: once it was put, those that the ledger names, whatever the rules say now."""
        effects = [call for call in self._calls if isinstance(call, Consented)]
        if earlier is None:
            return [call for call in effects if call.asks]
        ledger = self.flow.history.operations
        rows = [(call, ledger.get((call.step_id, OPERATION))) for call in effects]
        return [call for call, row in rows if row is not None and row.status == "awaiting_approval"]

    def _reason(self, asking: Sequence[Consented[Any]], previews: Sequence[str], until: datetime) -> Reason:
        """Put the question: as many previews as fit, the rest is counted (the receipt has all of them)."""
        task_id = self.flow.claim.task_id
        head, listed, room = f"{_count(asking)} wait for one yes", "", _LENGTH - 200
        for n, preview in enumerate(previews):
            if len(listed) + len(preview[:_SHOWN]) > room:
                listed += f"; and {len(previews) - n} more: outlive receipt {task_id}"
                break
            listed += f"{'; ' if listed else ': '}{preview[:_SHOWN]}"
        return Reason(
            reason=ReasonCode.APPROVAL, since=self.flow.world.clock.now(), do=f"outlive approve {task_id} {self.step_id}",
            message=head + listed, step_id=self.step_id, operation_id=OPERATION, digest=self.digest.hex(), until=until,
        )  # fmt: skip

    def _answered(self, asking: Sequence[Consented[Any]], letter: Mail | None, command: Any) -> bool:
        """Record the answer with what it means for each call."""
        by = (letter.by or "a person") if letter is not None else None
        status: ApprovalStatus = "given"
        message, note, ledger = f"{by} said yes to {_count(asking)}", f"{AGREED}{by}", "prepared"
        if isinstance(command, Reject):
            why = f": {command.reason}" if command.reason else ""
            status, message, ledger = "refused", f"{_count(asking)} were refused by {by}{why}", "failed"
            note = REJECTED + message
        elif letter is None:
            status, message, ledger = "expired", f"nobody said yes to {_count(asking)} in time", "failed"
            note = message
        answer = Answer(
            status=status, message="" if status == "given" else message, by=by,
            calls=[(call.step_id, call.digest.hex()) for call in asking],
        )  # fmt: skip
        ended = self.flow.world.clock.now() if ledger == "failed" else None
        fact = self._fact(
            "completed", message[:500], body=codec.encode(answer), inbox_pos=letter.pos if letter else None
        )
        self.flow.write(
            Record(
                facts=(self._approval(status, message, by), fact), answers=taken(letter), steps=1, point="outcome",
                operations=[_row(call, ledger, f"{note} (step {self.step_id})", ended) for call in asking],
                current_step=self.step_id, state=self.flow.withdraw(self.step_id),
            )
        )  # fmt: skip
        return self._hand_out(answer)

    def _hand_out(self, answer: Answer) -> bool:
        """Give each call its part, unless it has used it."""
        history, given = self.flow.history, answer.status == "given"
        for step_id, digest in answer.calls:
            ledger = history.operations.get((step_id, OPERATION))
            unused = (ledger is None or ledger.status in OPEN) if given else not history.tried_again(step_id)
            if unused:
                history.parts[step_id] = Part(
                    bytes.fromhex(digest), self.step_id, answer.status, answer.by, answer.message
                )
        return given

    def _approval(self, status: ApprovalStatus, message: str, by: str | None = None) -> Any:
        return happenings.approval(
            self.flow.claim, self.flow.world.clock.now(), self.step_id, OPERATION, status, message[:_LENGTH], by=by
        )


def _checked(flow: Flow, calls: Sequence[Any]) -> list[ToolStep[Any]]:
    """Refuse what is no list of calls of this task that are still to be awaited."""
    if not 1 <= len(calls) <= MOST:
        raise ValueError(f"approve_all of {len(calls)} calls: give 1 to {MOST}")
    seen: set[str] = set()
    for call in calls:
        if not isinstance(call, ToolStep) or call.flow is not flow:
            raise TypeError(f"approve_all takes what task.call(tool, ...) returns, not {call!r}")
        if call.awaited or call.step_id in seen:
            raise ValueError(
                f"approve_all: {call.tool.name} (step {call.step_id}) was awaited before, or is given twice"
            )
        seen.add(call.step_id)
    return list(calls)


async def _previews(calls: Sequence[Consented[Any]]) -> list[str]:
    limit = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Consented[Any]) -> str:
        async with limit:
            return call.clean(await call.preview())

    return await asyncio.gather(*map(one, calls))


def _row(call: Consented[Any], status: str, note: str, ended: datetime | None = None) -> OperationRow:
    return call.row(status, ended=ended)._replace(note=column(note))


def _count(calls: Sequence[Consented[Any]]) -> str:
    return f"{len(calls)} call{'s' if len(calls) > 1 else ''}"
