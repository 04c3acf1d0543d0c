"""`task.ask`: a question to a person, kept until it is answered or has run out of time; no process waits meanwhile."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from outlive.actors.flow import Flow
from outlive.actors.waiting import Waiting, signal_value
from outlive.infra.claims import StoredFact
from outlive.infra.records import Record
from outlive.protocol import codec, steps
from outlive.protocol.task import Failure, Reason, ReasonCode

LENGTH: Final = 2000
"""Characters of a question."""

_SHOWN: Final = 200


class Question(Waiting[str]):
    """A question that has taken its place and is put when it is awaited."""

    name = "ask"

    def __init__(
        self, flow: Flow, step_id: str, question: str, choices: Sequence[str] = (), timeout: float | None = None
    ) -> None:
        """See `Task.ask`. The choices are part of what the step is recognised by, the timeout is not."""
        if not 1 <= len(question) <= LENGTH:
            raise ValueError(f"ask: the question has {len(question)} characters, 1 to {LENGTH} are allowed")
        if isinstance(choices, str) or "" in choices or len(set(choices)) != len(choices):
            raise ValueError(f"ask(..., choices={choices!r}): give different texts, none of them empty")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"ask(..., timeout={timeout}): give seconds above 0")
        arguments = codec.encode({"question": question, **({"choices": list(choices)} if choices else {})})
        super().__init__(flow, step_id, codec.digest(b"ask", arguments), arguments)
        self._question = question
        self._choices = list(choices)
        self._timeout = timeout

    def stored(self, fact: StoredFact) -> str:
        """Give the answer that was taken."""
        answer: str = codec.unpack(fact.body or b"null", str)
        return answer

    async def perform(self, earlier: StoredFact | None) -> str:
        """Put the question unless it stands, and wait for the answer."""
        now = self.flow.world.clock.now()
        until = earlier.wait_until if earlier is not None else None
        if earlier is None and self._timeout is not None:
            until = now + timedelta(seconds=self._timeout)
        shown = f" ({' / '.join(self._choices)})" if self._choices else ""
        reason = Reason(
            reason=ReasonCode.QUESTION, since=now, do=f"outlive answer {self.flow.claim.task_id} {self.step_id} TEXT",
            message=f"{self._question}{shown}", step_id=self.step_id, until=until, choices=self._choices,
        )  # fmt: skip

        def asked() -> Record:
            fact = self._fact("waiting", f"Asks: {reason.message}"[:500], wait_until=until)
            return Record(facts=(fact,), current_step=self.step_id)

        letter = await self.flow.consult(self.step_id, reason, asked, kept_as=steps.answer_signal(self.step_id))
        if letter is None:
            raise self._timed_out()
        body = signal_value(letter)
        answer: str = codec.unpack(body, str)  # checked when it was taken in
        self._end("completed", f"{letter.by or 'Somebody'} answered: {answer[:_SHOWN]}", body, letter)
        return answer

    def _timed_out(self) -> TimeoutError:
        within = f" within {self._timeout:g} s" if self._timeout is not None else " in time"
        failure = Failure(
            type="TimeoutError", message=f"nobody answered{within}: {self._question[:_SHOWN]}", error_class="timeout",
            step_id=self.step_id,
        )  # fmt: skip
        self._end("failed", failure.message, codec.encode(failure), state=self.flow.withdraw(self.step_id))
        return TimeoutError(failure.message)
