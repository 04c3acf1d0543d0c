"""Sending commands: published until the stream has them, then answered, or an error that says what is known."""

import asyncio
import contextlib
import itertools
from typing import Final

import anyio
import msgspec
from nats.aio.msg import Msg

from outlive.infra.bus import Bus, BusError, InvalidSubject, PublishTimeout, TooLarge
from outlive.infra.questions import QuestionRefused, Questions
from outlive.protocol import api, codec, ids
from outlive.protocol.answers import Answer, Code
from outlive.protocol.api import Trouble
from outlive.protocol.commands import AnyCommand
from outlive.protocol.errors import CommandRefused, NoAnswer, Unreachable
from outlive.protocol.subjects import Subjects

_ASK_AFTER: Final = (0.25, 0.5, 1.0, 2.0, 2.0)  # seconds without an answer: it may have been lost, the api knows it
_RESEND_PAUSE: Final = (0.05, 1.0)

_read_answer: Final = msgspec.json.Decoder(Answer).decode


class Sender:
    """Sends the commands of one tenant's client.

    Args:
        bus: a connection to NATS.
        subjects: of the installation.
        tenant: whose tasks.
        questions: asked for answers that were lost on the way.
        by: who gives the commands, where a command does not say so itself.
    """

    def __init__(self, bus: Bus, subjects: Subjects, tenant: str, questions: Questions, by: str | None) -> None:
        self._bus = bus
        self._subjects = subjects
        self._tenant = tenant
        self._questions = questions
        self._by = by

    async def send(self, task_id: str, command: AnyCommand, seconds: float) -> Answer:
        """Send a command and return its answer, a yes; the same id is sent again until the outcome is known.

        Raises:
            CommandRefused: the answer is a no.
            NoAnswer: the stream has it, nobody has answered within `seconds`.
            Unreachable: it is not known whether the stream has it.
            ids.InvalidId, outlive.infra.bus.TooLarge: nothing was sent.
        """
        sending = self._sending(ids.check("task_id", task_id), command)
        try:
            async with asyncio.timeout(seconds):
                await self._bus.wait_connected()
                subscription = await self._bus.subscribe(self._subjects.answer(self._tenant, task_id), sending.receive)
                try:
                    answer = await sending.run()
                finally:
                    with anyio.CancelScope(shield=True):
                        await subscription.unsubscribe()
        except TimeoutError:
            raise sending.failure(seconds) from None
        if not answer.ok:
            raise CommandRefused(answer)
        return answer

    def _sending(self, task_id: str, command: AnyCommand) -> "_Sending":
        command_id = ids.new_id() if command.command_id is None else ids.check("command_id", command.command_id)
        command = msgspec.structs.replace(command, command_id=command_id, by=command.by or self._by)
        verb = str(command.__struct_config__.tag)
        body = msgspec.json.encode(command)
        digest = codec.command_digest(self._tenant, task_id, verb, codec.plain(body)).hex()
        subject = self._subjects.command(self._tenant, task_id, verb)
        return _Sending(self._bus, self._questions, subject, body, task_id, command_id, digest)


class _Sending:
    """One command on its way."""

    def __init__(
        self, bus: Bus, questions: Questions, subject: str, body: bytes, task_id: str, command_id: str, digest: str
    ) -> None:
        self._bus = bus
        self._questions = questions
        self._subject = subject
        self._body = body
        self._task_id = task_id
        self._command_id = command_id
        self._digest = digest
        # The stream compares ids alone and across all tasks: with the digest in it, another body is another id.
        self._headers = {"Nats-Msg-Id": f"{command_id}:{digest[:16]}"}
        self._answer: Answer | None = None
        self._answered = asyncio.Event()
        self._stored = False
        self._last_error = "no connection to NATS"

    async def receive(self, message: Msg) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            answer = _read_answer(message.data)
            if answer.command_id == self._command_id:
                self._conclude(answer)

    def _conclude(self, answer: Answer) -> None:
        self._answer = self._answer or answer
        self._answered.set()

    async def run(self) -> Answer:
        while True:
            await self._publish()
            await self._await_answer()
            if self._answer is not None:
                return self._answer

    async def _publish(self) -> None:
        pause, longest = _RESEND_PAUSE
        while self._answer is None:
            try:
                await self._bus.wait_connected()
                ack = await self._bus.publish_tracked(self._subject, self._body, self._headers)
            except (TooLarge, InvalidSubject):
                raise
            except BusError as error:
                self._last_error = str(error)
                await asyncio.sleep(0 if isinstance(error, PublishTimeout) else pause)
                pause = min(pause * 2, longest)
            else:
                self._stored = True
                if ack.duplicate:  # then nobody reads it a second time, nor answers again
                    await self._is_missing()
                return

    async def _await_answer(self) -> None:
        """Return with the answer, or when the command is nowhere to be found and must be sent again."""
        for round_, pause in enumerate(itertools.chain(_ASK_AFTER, itertools.repeat(_ASK_AFTER[-1])), 1):
            with anyio.move_on_after(pause):
                await self._answered.wait()
            if self._answer is None and await self._is_missing() and round_ >= len(_ASK_AFTER):
                return
            if self._answer is not None:
                return

    async def _is_missing(self) -> bool:
        """Ask for the stored answer, which may have been lost on the way; tell whether the command never arrived."""
        try:
            record = await self._questions.ask(
                "command", api.FindCommand(command_id=self._command_id), api.CommandRecord, timeout=1.0
            )
        except QuestionRefused as refused:
            return refused.problem.error is Trouble.UNKNOWN_COMMAND
        except Unreachable:
            return False
        if record.digest != self._digest:
            self._conclude(self._conflict(record))
        elif record.answer is not None:
            self._conclude(record.answer)
        return False

    def _conflict(self, record: api.CommandRecord) -> Answer:
        message = (
            f"command id {self._command_id!r} is taken: it was a {record.verb} of task {record.task_id} with another "
            "content. Send this one under an id of its own"
        )
        return Answer(
            command_id=self._command_id, task_id=self._task_id, ok=False, code=Code.CONFLICT, message=message,
            at=record.received_at,
        )  # fmt: skip

    def failure(self, seconds: float) -> NoAnswer | Unreachable:
        """Say what is known when time is up."""
        again = f"Sending it again with command_id={self._command_id!r} is safe and tells"
        if self._stored:
            return NoAnswer(
                f"command {self._command_id} to task {self._task_id} is stored, but nobody has answered within "
                f"{seconds:g} s. It will be decided when a worker runs (outlive worker APP). {again} the answer"
            )
        return Unreachable(
            f"command {self._command_id} to task {self._task_id} may or may not be stored: {self._last_error}. "
            f"{again} what became of it"
        )
