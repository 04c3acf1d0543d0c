"""The mailbox of an actor: commands to its task, applied in the order of the inbox while its function runs.

What a command does is decided by the pure `lifecycle.apply`, as for the clerk; here its answer and its event become
part of the task's own line of records, and what it leaves for the function is put where the function looks for it.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from outlive.actors.flow import Flow, Stopped
from outlive.actors.history import TRIED_AGAIN, refused
from outlive.actors.waiting import signal_value
from outlive.infra import happenings
from outlive.infra.claims import Mail, StoredFact, StoredOperation
from outlive.infra.clerk import answered, corrected, decided, is_word, read_command
from outlive.infra.records import AnswerRow, Fact, OperationRow, Record, Said, State
from outlive.protocol import codec, keys, lifecycle, secrets
from outlive.protocol.answers import Code
from outlive.protocol.commands import AnyCommand, Approve, ChildEnded, EditPlan, Internal, Signal, Skip
from outlive.protocol.events import StepStatus

SHOWN: Final = 500
"""Bytes of arguments and results that are shown in sentences."""


class Mailbox:
    """Reads a task's mail for its actor."""

    def __init__(self, flow: Flow) -> None:
        """Apply what comes to this flow."""
        self.deferred: list[Mail] = []  # came while it was decided whether the task is let go
        self._flow = flow
        self._answered: dict[str, str] = {}  # who answered what was asked about a step

    def recover(self, letters: Sequence[Mail]) -> None:
        """Take in what was loaded with the task: seen before and still of use, or new."""
        for letter in letters:
            if letter.taken:
                self._answered[letter.name or ""] = answered(letter.verb, letter.by, letter.at)
                if isinstance(command := read_command(letter), Approve):
                    self._flow.history.yeses[keys.split_operation(command.operation_id)] = letter.pos
                continue
            (self._keep if letter.pos <= self._flow.claim.applied else self._apply)(letter)

    def deliver(self, letters: Sequence[Mail]) -> None:
        """Apply mail in its order; what was applied before is passed over."""
        if self._flow.departing or self._flow.claim.left:
            self.deferred.extend(letters)  # if the task is let go, the table knows that nobody has seen it
            return
        try:
            for letter in letters:
                if letter.pos > self._flow.claim.applied:
                    self._apply(letter)
        except Stopped:
            return  # fenced: the next owner reads it

    def _apply(self, letter: Mail) -> None:
        now = self._flow.world.clock.now()
        command = read_command(letter)
        decision = self._decide(command, letter, now)
        facts: tuple[Fact, ...] = ()
        said: tuple[Said, ...] = ()
        if not isinstance(command, ChildEnded):
            facts = (
                happenings.command(
                    self._flow.claim, now, letter.command_id, letter.verb, decision.code, decision.message, by=letter.by
                ),
            )
            said = (Said(letter.command_id, decision.code, decision.message, now),)
        reasons = codec.encode(list(decision.reasons)) if decision.reasons != self._flow.standing else None
        state = State(
            cancelling=decision.cancelling or None, reasons=reasons, tell=decision.cancelling,
            compensating=decision.compensating if decision.compensating != self._flow.compensating else None,
        )  # fmt: skip
        if decision.ok and isinstance(command, EditPlan):
            plan = command.plan(letter.by)
            facts = (*facts, happenings.plan(self._flow.claim, now, plan, inbox_pos=letter.pos))
            state.plan_version, state.plan_total = plan.version, len(plan.items)
            self._flow.plan_version = plan.version
        answer = decided(letter, decision, self._flow.status)
        self._flow.write(Record(facts=facts, answers=(answer,), state=state, applied=letter.pos, said=said))
        if decision.ok:
            self._flow.standing, self._flow.cancelling = decision.reasons, decision.cancelling
            self._flow.compensating = decision.compensating
            self._obey(decision, letter)
            self._keep(letter)

    def _decide(self, command: AnyCommand | Internal | str, letter: Mail, now: datetime) -> lifecycle.Decision:
        if isinstance(command, str):
            return self._invalid(command)
        if isinstance(command, Signal) and (known := self._flow.world.signals.get(command.name)) is not None:
            try:
                known.decode(signal_value(letter))
            except codec.NotStorable as error:
                return self._invalid(f"signal {command.name} takes another type: {error}. Nothing was changed.")
        step_id, history = letter.name or "", self._flow.history
        done, latest = history.done.get(step_id), history.latest(step_id)
        facts = lifecycle.Facts(
            task_id=self._flow.claim.task_id, status=self._flow.status, reasons=self._flow.standing, owned=True, started=True,
            cancelling=self._flow.cancelling, compensating=self._flow.compensating, step=done and done.status, name=done.name if done else "",
            result=_short_result(done), operation=latest.operation_id if latest else "",
            answered=self._answered.get(step_id, ""), plans=self._flow.kind.plans,
            plan_version=self._flow.plan_version,
        )  # fmt: skip
        return lifecycle.apply(facts, command, now=now)

    def _invalid(self, message: str) -> lifecycle.Decision:
        return lifecycle.Decision(
            code=Code.INVALID,
            message=message,
            status=self._flow.status,
            reasons=self._flow.standing,
            cancelling=self._flow.cancelling,
            compensating=self._flow.compensating,
        )

    def _obey(self, decision: lifecycle.Decision, letter: Mail) -> None:
        if decision.stop == "cancel":
            if not (self._flow.undoing and decision.compensating):  # else what is to stop has stopped
                self._flow.halt("cancel")
        elif decision.stop == "pause":
            self._flow.halt("pause")
        elif letter.verb == "resume":
            self._flow.relent()

    def _keep(self, letter: Mail) -> None:
        """Put a signal, a person's word, their plan or a child's end where the function looks for it."""
        if letter.verb == "cancel":
            self._flow.cancelled_by = self._flow.cancelled_by or letter.by
        elif letter.name is not None and is_word(letter):
            self._answered[letter.name] = answered(letter.verb, letter.by, letter.at)
            self._flow.history.letters[letter.name].append(letter)
            self._flow.lettered(letter.name)
        elif letter.verb == "signal" and letter.name is not None:
            self._flow.history.signals[letter.name].append(letter)
            self._flow.signalled(letter.name)
        elif letter.verb == "retry":
            self._try_again(letter)
        elif letter.verb == "skip":
            self._give_result(letter)
        elif letter.verb == "edit_plan":
            command = read_command(letter)
            assert isinstance(command, EditPlan)
            self._flow.history.edits.append((letter, command.plan(letter.by)))
        elif letter.verb == "child" and letter.name is not None:
            self._flow.history.child_ends[letter.name] = letter
            self._flow.child_ended(letter.name)

    def _try_again(self, letter: Mail) -> None:
        """A person has a step tried again, perhaps with other arguments: from here on the history says so."""
        history, answer = self._flow.history, AnswerRow(letter.pos, taken=True)
        known = history.known(letter.name or "")
        if known is None:
            self._flow.write(Record(answers=(answer,)))  # the function itself failed: it simply runs again
            return
        message = f"{known.name}: {letter.by or 'a person'} has it tried again"
        operations: tuple[OperationRow, ...] = ()
        if (arguments := corrected(letter)) is not None:
            tool = self._flow.world.tools.get(known.name)  # its secrets come from the code, whatever is given here
            arguments = arguments if tool is None else secrets.without(arguments, tool.arguments.secrets)
            before = history.latest(known.step_id) or known
            renewed = history.renew(known.step_id, known.name, arguments)
            if isinstance(before, StoredOperation):  # an effect: what is sent under the new key stands in the ledger
                note = f"arguments corrected by {letter.by or 'a person'}"
                operations = (renewed.row(self._flow.world.clock.now())._replace(note=note),)
            was, now = _shown(before.arguments), _shown(arguments)
            message = f"{message} as {renewed.step_id}:{renewed.operation_id}, with {now} instead of {was}"
            answer = answer._replace(who=letter.by or "unknown", what="correct", before=was, after=now)
        fact = self._moved(known, "waiting", message, letter, body=TRIED_AGAIN, arguments=arguments)
        state = self._flow.withdraw(known.step_id)
        self._flow.write(Record(facts=(fact,), operations=operations, answers=(answer,), state=state))
        history.replace(known._replace(seq=fact.seq, status="waiting", body=TRIED_AGAIN, inbox_pos=None))

    def _give_result(self, letter: Mail) -> None:
        """A person gives a step its result: from here on the history has it."""
        command, history, answer = read_command(letter), self._flow.history, AnswerRow(letter.pos, taken=True)
        known = self._flow.known(letter.name or "")
        if known is None or not isinstance(command, Skip):
            self._flow.write(Record(answers=(answer,)))
            return
        body = codec.encode(command.result)
        message = f"{known.name}: {letter.by or 'a person'} gave it this result: not run"
        fact = self._moved(known, "completed", message, letter, body=body)
        record = Record(facts=(fact,), answers=(answer,), steps=1, state=self._flow.withdraw(known.step_id))
        asked = history.latest(known.step_id)
        if isinstance(asked, StoredOperation) and asked.status in {"prepared", "awaiting_approval"}:
            record.operations = (refused(asked, self._flow.world.clock.now()),)  # it will never be sent
        self._flow.write(record)
        history.replace(known._replace(seq=fact.seq, status="completed", body=body))
        self._flow.skipped(known.step_id)

    def _moved(self, known: StoredFact, status: StepStatus, message: str, letter: Mail, **more: Any) -> Fact:
        """Return the fact that a letter has moved a step."""
        return happenings.step(
            self._flow.claim, self._flow.world.clock.now(), known.step_id, known.name, status, message[:1500],
            digest=known.digest, attempt=known.attempt, inbox_pos=letter.pos, item=known.item, **more,
        )  # fmt: skip


def _short_result(done: StoredFact | None) -> str:
    body = done.body if done is not None and done.status == "completed" else None
    return body.decode() if body is not None and len(body) <= SHOWN else ""


def _shown(arguments: bytes | None) -> str:
    return "other arguments" if arguments is None else arguments[:SHOWN].decode(errors="replace")
