"""Asking the api: one question, one reply, over workers that come and go."""

import asyncio
from typing import Final, TypeVar

import msgspec

from outlive.infra.bus import Bus, BusError, Disconnected, NoResponders, RequestTimeout
from outlive.protocol import api
from outlive.protocol.api import Problem, Trouble
from outlive.protocol.errors import OutliveError, Unreachable
from outlive.protocol.subjects import Subjects

T = TypeVar("T")

TIMEOUT: Final = 5.0
"""Seconds for a question, with all its repetitions."""

_PASSING: Final = frozenset({Trouble.BUSY, Trouble.UNAVAILABLE})
_ONE_TRY: Final = 2.0
_PAUSE: Final = 0.1

_read_problem: Final = msgspec.json.Decoder(Problem).decode


class QuestionRefused(OutliveError):
    """The answer to a question is a no; the message says what to do.

    Causes: an unknown task or command, a request that cannot be read, an answer that is too large for one message.

    Attributes:
        problem: the whole reply, with the code.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem: Final = problem


class Questions:
    """Asks about the tasks of one tenant.

    Args:
        bus: a connection to NATS.
        subjects: of the installation.
        tenant: whose tasks.
        timeout: seconds for one question; it is asked again within them while nobody answers.
    """

    def __init__(self, bus: Bus, subjects: Subjects, tenant: str, *, timeout: float = TIMEOUT) -> None:
        self._bus = bus
        self._subjects = subjects
        self._tenant = tenant
        self._timeout = timeout

    async def ask(self, verb: str, question: msgspec.Struct, reply: type[T], *, timeout: float | None = None) -> T:  # noqa: ASYNC109  # repeats itself within it
        """Ask and return the reply, read as `reply`.

        Raises:
            QuestionRefused: the answer is a no.
            outlive.protocol.errors.Unreachable: nobody answered in time.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + (self._timeout if timeout is None else timeout)
        subject, body = self._subjects.api(self._tenant, verb), msgspec.json.encode(question)
        while True:
            left = until - loop.time()
            try:
                return await self._once(subject, body, reply, min(max(left, _PAUSE), _ONE_TRY))
            except (NoResponders, RequestTimeout, Disconnected, QuestionRefused) as error:
                if isinstance(error, QuestionRefused) and error.problem.error not in _PASSING:
                    raise
                if until - loop.time() <= _PAUSE:
                    raise _unreachable(error) from error
            await asyncio.sleep(_PAUSE)

    async def _once(self, subject: str, body: bytes, reply: type[T], seconds: float) -> T:
        message = await self._bus.request(subject, body, timeout=seconds)
        if message.headers and api.ERROR_HEADER in message.headers:
            raise QuestionRefused(_read_problem(message.data))
        return msgspec.json.decode(message.data, type=reply)

    async def whole(
        self, task_id: str, part: api.Part, seq: int | None = None, *, command_id: str | None = None
    ) -> bytes:
        """Return a large value, fetched piece by piece. Raises like `ask`."""
        data = bytearray()
        while True:
            question = api.Slice(task_id=task_id, part=part, seq=seq, command_id=command_id, offset=len(data))
            piece = await self.ask("slice", question, api.Piece)
            data += piece.data
            if len(data) >= piece.total:
                return bytes(data)


def _unreachable(error: BusError | QuestionRefused) -> Unreachable:
    match error:
        case NoResponders():
            return Unreachable(f"{error}: is a worker running? Start one: outlive worker APP")
        case _:
            return Unreachable(str(error))
