"""Consent: what a person must have said before a call is made.

    asked       the question stands in the task's row, with the digest of exactly these arguments and a deadline
    given       the first answer in the store's order; used once, in the transaction of the intent that rests on it
    refused     a no, also by silence: the step fails; the same call again is refused at once, with the same words

Automatic attempts of an operation rest on the yes that its first one used.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from outlive.actors.failures import column, printable
from outlive.actors.flow import Flow, Skipped
from outlive.actors.history import AGREED, REJECTED, Part
from outlive.actors.step import ToolStep
from outlive.infra import happenings
from outlive.infra.claims import Mail
from outlive.infra.clerk import read_command
from outlive.infra.records import AnswerRow, Fact, OperationRow, Record
from outlive.protocol import codec, keys
from outlive.protocol.commands import Approve, Reject
from outlive.protocol.errors import StepFailed
from outlive.protocol.task import Failure, Reason, ReasonCode
from outlive.protocol.tools import AnyTool

R = TypeVar("R")


class Consented(ToolStep[R]):
    """A call that may need a person's yes, with the words and rows that it shares with what follows it."""

    __slots__ = ("_agreed", "_letter", "_note", "_part", "_waived")

    def __init__(self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any]) -> None:
        """See `ToolStep`."""
        super().__init__(flow, step_id, tool, bound)
        self._letter: Mail | None = None  # the yes that the next intent uses up
        self._part: Part | None = None  # the same, of an answer to several calls
        self._waived = False  # the tool wants a yes, and the operator has switched that off
        self._agreed = False  # an intent has used one: later attempts of the operation rest on it
        self._note: str | None = None  # what the ledger will say beside the status

    async def consent(self) -> None:
        """Wait for a person's yes where the tool wants one. Raises `StepFailed` for a no, also by silence.

        Defeats: a world that changes between a person's yes and the call
        Then: the call is made: the yes is for these arguments, not for what the preview showed of the world
        Seen: when the question was asked, answered and used (`outlive receipt TASK`)
        """
        if self._letter is not None or self._agreed or not self._wants():
            return
        if self.flow.history.agreed(self.step_id, self.operation_id):
            return  # an attempt of another worker has used a yes, and this one rests on it
        part = self.flow.history.parts.pop(self.step_id, None)
        if part is not None and part.digest == self.payload:
            self._take(part)
            return
        self._as_before()
        await self.ask(await self.preview())

    @property
    def asks(self) -> bool:
        """True when this call, if it began now, would wait for a yes."""
        return self._wants() and self.payload not in self.flow.history.refusals

    def _wants(self) -> bool:
        """True when the tool's rule, or the submit, wants a yes for this call; noted where the operator waives it."""
        if self.flow.history.policy.asks(self.tool.name):
            return True
        wanted = self.tool.needs_approval(self.bound)
        self._waived = wanted and self.tool.name in self.flow.world.waived
        return wanted and not self._waived

    def _take(self, part: Part) -> None:
        """Take this call's part of an answer to several."""
        if part.status != "given":
            raise self._refused(None, part.status, f"{self._title()}: {part.message} (step {part.question})")
        self._part = part

    async def ask(self, message: str) -> None:
        """Wait for a yes to this call; the next intent uses it. Raises `StepFailed` for a no, also by silence."""
        until = self.flow.world.clock.now() + timedelta(seconds=self.tool.approval_ttl)
        reason = self._reason(ReasonCode.APPROVAL, f"outlive approve {self._named}", message[:2000], until)

        def asked() -> Record:
            operation = self._row("awaiting_approval", arguments=self.shown)
            return Record(facts=(self._approval("asked", reason.message),), operations=(operation,), point="question")

        while True:
            try:
                letter = await self.flow.consult(self.step_id, reason, asked)
            except Skipped:
                row = self._row("failed", arguments=self.shown, ended=self.flow.world.clock.now())
                self.flow.write(Record(operations=(row,)))  # it will never be sent
                raise
            if letter is None:
                raise self._refused(None, "expired", f"nobody said yes to {self._title()} in time")
            command = read_command(letter)
            if not self._about_this(command):
                self._pass_over(letter, "it is about another operation of the step")
                continue
            if isinstance(command, Reject):
                why = f": {command.reason}" if command.reason else ""
                raise self._refused(letter, "refused", f"{self._title()} was refused by {letter.by or 'a person'}{why}")
            if isinstance(command, Approve):  # its digest was checked against the reason's when it was applied
                self._letter, self._began = letter, self.flow.world.clock.now()
                return
            self._pass_over(letter, "it says neither yes nor no")

    def _as_before(self) -> None:
        """Refuse a call to which a person has said no already, unless a person wants it tried again."""
        earlier = self.flow.history.refusals.get(self.payload)
        if earlier is not None and not self.flow.history.tried_again(self.step_id):
            raise self._refused(None, "refused", f"{earlier[1]} (asked by step {earlier[0]})")

    async def preview(self) -> str:
        """Say what a person is asked: the call, and what the tool's `prepare` says of it."""
        self._began = self.flow.world.clock.now()
        shown = f"{self._show()} waits for your yes"
        if self.tool.preparer is None:
            return shown
        try:
            preview = printable(str(await self.run(self.tool.preparer)))
        except Exception as error:  # noqa: BLE001  # a preview may fail in any way; the question stands all the same
            return f"{shown} (no preview: {self.failure(error).message})"
        return f"{shown}:\n{preview}" if "\n" in preview else f"{shown}: {preview}"

    def _refused(self, letter: Mail | None, status: str, message: str) -> StepFailed:
        """Record a no. Returns what is raised now and on every resume."""
        expired = status == "expired"
        kind = "ApprovalExpired" if expired else "Rejected"
        failure = Failure(type=kind, message=message, error_class="rejected", step_id=self.step_id)
        note = None
        if not expired:
            note = column(REJECTED + message)
            self.flow.history.refusals.setdefault(self.payload, (self.step_id, message))
        row = self._row("failed", arguments=self.shown, ended=self.flow.world.clock.now())
        self.flow.write(
            Record(
                facts=(
                    self._approval(status, message, letter),
                    self._fact("failed", message[:500], body=codec.encode(failure), **pos(letter)),
                ),
                operations=(row._replace(note=note),), answers=taken(letter), steps=1,
                current_step=self.step_id, state=self.flow.withdraw(self.step_id), point="outcome",
            )
        )  # fmt: skip
        return StepFailed(failure)

    def rests(self) -> Record:
        """The beginning of an intent: what it tells of the yes that it uses up, or does without."""
        if self._waived and self._letter is None and not self._agreed:
            return self._unasked()
        before = self.flow.history.operations.get((self.step_id, self.operation_id))
        if self._letter is not None and before is not None and (before.note or "").startswith(REJECTED):
            self._note = self._note or f"{AGREED}{self._letter.by or 'a person'}"  # the no was taken back
        return Record(facts=self._uses(), answers=taken(self._letter))

    def _unasked(self) -> Record:
        message = f"{self._show()} was not asked for: waived by the operator"[:500]
        fact = self._approval("waived", message)
        who, what = "operator", "waive_approval"
        row = AnswerRow(
            -fact.seq, "waived", message, who=who, what=what
        )  # no inbox row has that place: a line of the audit
        self._note, self._agreed = "not asked: waived by the operator", True
        return Record(facts=(fact,), answers=(row,))

    def _uses(self) -> Sequence[Fact]:
        if self._part is not None:
            what = f"The yes of {self._part.by} (step {self._part.question}) is used for {self._title()}"
            return (self._approval("used", what, by=self._part.by),)
        if self._letter is None:
            return ()
        by = self._letter.by or "a person"
        return (
            self._approval("given", f"{by} said yes to {self._title()}", self._letter),
            self._approval("used", f"The yes of {by} is used for {self._title()}", self._letter),
        )

    def used(self) -> None:
        """The intent that uses the yes is durable."""
        if self._letter is not None or self._part is not None:
            self._agreed = True
            self.flow.history.refusals.pop(self.payload, None)
        self._letter = self._part = self._note = None

    # --- words and rows

    def _pass_over(self, letter: Mail | None, why: str) -> None:
        """Tell that a letter cannot be used; the question is asked again."""
        self._tell(f"{self._title()}: an answer was passed over: {why}", letter=letter)

    def _tell(
        self, message: str, status: str = "unknown", *, letter: Mail | None = None, alarm: bool = False, **more: Any
    ) -> None:
        flow = self.flow
        record = Record(facts=(self._fact(status, message[:500], **more, **pos(letter)),), answers=taken(letter))
        if alarm:
            record.attention = (flow.status, message[:500], list(flow.standing), flow.world.clock.now())
        flow.write(record)

    def _about_this(self, command: object) -> bool:
        """True unless a person's word is about another operation of the step: letters are kept by step."""
        named = getattr(command, "operation_id", None)
        return named is None or keys.split_operation(named) == (self.step_id, self.operation_id)

    @property
    def _named(self) -> str:
        return f"{self.flow.claim.task_id} {keys.short(self.step_id, self.operation_id)}"

    def _reason(self, code: ReasonCode, do: str, message: str, until: Any) -> Reason:
        return Reason(
            reason=code, since=self.flow.world.clock.now(), do=do, message=self.clean(message), step_id=self.step_id,
            operation_id=self.operation_id, until=until, digest=self.payload.hex(),
        )  # fmt: skip

    def row(self, status: str, *, ended: datetime | None = None) -> OperationRow:
        """What the ledger says of this call before it has begun."""
        self._began = self.flow.world.clock.now()
        return self._row(status, arguments=self.shown, ended=ended)

    def _approval(self, status: Any, message: str, letter: Mail | None = None, *, by: str | None = None) -> Fact:
        by = letter.by if letter is not None else by
        return happenings.approval(
            self.flow.claim,
            self.flow.world.clock.now(),
            self.step_id,
            self.operation_id,
            status,
            self.clean(message),
            by=by,
        )


def taken(letter: Mail | None) -> tuple[AnswerRow, ...]:
    """The mark that a step has used a letter."""
    return (AnswerRow(letter.pos, taken=True),) if letter is not None else ()


def pos(letter: Mail | None) -> dict[str, int]:
    """The letter that a fact names."""
    return {"inbox_pos": letter.pos} if letter is not None else {}
