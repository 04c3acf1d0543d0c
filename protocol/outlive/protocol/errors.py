"""Exceptions of the public interface, by what the reader can do about them; each docstring lists the causes."""

from typing import ClassVar, Final

from outlive.protocol.answers import Answer
from outlive.protocol.effects import Effects
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Failure


class OutliveError(Exception):
    """Base of what Outlive raises for its users to catch."""


class ToolError(OutliveError):
    """Base of what a tool raises to say how its failure is to be met; any other exception counts as a bug."""

    error_class: ClassVar[ErrorClass] = ErrorClass.BUG


class RateLimited(ToolError):
    """The remote wants us to wait: tried again after `retry_after`, in the end the task pauses.

    Causes: HTTP 429, a provider's quota.

    Attributes:
        retry_after: seconds that the remote asked for; None leaves it to the backoff.
    """

    error_class = ErrorClass.RATE_LIMITED

    def __init__(self, message: str = "rate limited", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after: Final = retry_after


class Unavailable(ToolError):
    """The remote cannot serve anybody now: tried again with growing pauses, a bounded number of times.

    Causes: HTTP 502 to 504, a connection that was reset before an answer. An effect may have happened all the same.

    Attributes:
        retry_after: seconds that the remote asked for; None leaves it to the backoff.
    """

    error_class = ErrorClass.UNAVAILABLE

    def __init__(self, message: str = "unavailable", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after: Final = retry_after


class NotSent(ToolError):
    """Proof that no request left, so nothing can have happened: tried again freely.

    Causes: connection refused, name not found, a check of the tool's own before it sends.
    """

    error_class = ErrorClass.NOT_SENT


class OutcomeUnknown(ToolError):
    """The request left and its answer was lost: it may or may not have happened.

    Causes: a timeout, a connection cut after the request was sent.
    """

    error_class = ErrorClass.TIMEOUT


class ToolChanged(ToolError):
    """The tool is no longer what the task knows it as; nothing was called. The task pauses (``version_mismatch``).

    Causes: a server was deployed anew, and says other things of its tool than it did when the task began.
    """

    error_class = ErrorClass.NOT_SENT


class InvalidArguments(ToolError):
    """The remote refused what was asked; the same again is useless.

    Causes: HTTP 400, 404, 409, 422.
    """

    error_class = ErrorClass.INVALID_ARGUMENTS


class PermissionDenied(ToolError):
    """We may not do this; never tried again.

    Causes: HTTP 401, 403, a missing or expired credential.
    """

    error_class = ErrorClass.PERMISSION_DENIED


class StepFailed(OutliveError):
    """A step failed for good. Raised where it is awaited, the same again on every resume; catch it to go another way.

    Causes: the tool's error allows no further attempt, or the attempts are used up.

    Attributes:
        failure: what went wrong, as stored.
    """

    def __init__(self, failure: Failure) -> None:
        where = f"step {failure.step_id}: " if failure.step_id else ""
        super().__init__(f"{where}{failure.type}: {failure.message}")
        self.failure: Final = failure


class TaskFailed(OutliveError):
    """The task (or child task) ended as failed; after a fix it can be submitted again under another id.

    Causes: its function raised the same exception twice at the same step, or a step's failure was not caught.

    Attributes:
        task_id: the task.
        failure: what went wrong, with the traceback where there is one.
    """

    def __init__(self, task_id: str, failure: Failure) -> None:
        super().__init__(f"task {task_id} failed: {failure.type}: {failure.message}")
        self.task_id: Final = task_id
        self.failure: Final = failure


class TaskCancelled(OutliveError):
    """The task (or child task) was cancelled; the message says what happened before, and what is unknown.

    Attributes:
        task_id: the task.
        effects: the same as data: what became of each effect. None where it is not known (of a child, in its parent).
    """

    def __init__(self, task_id: str, message: str = "", effects: Effects | None = None) -> None:
        super().__init__(message or f"task {task_id} was cancelled")
        self.task_id: Final = task_id
        self.effects: Final = effects


class CommandRefused(OutliveError):
    """The answer to a command was a no; its message says what to do.

    Causes: see `outlive.protocol.answers.Code`.

    Attributes:
        answer: the whole answer, with the code.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.answer: Final = answer


class NoAnswer(OutliveError):
    """A command is stored in the stream, but nobody answered in time. It will be applied; send it again to ask.

    Causes: no worker is alive, or Postgres cannot be reached. The same command id is safe to send again.
    """


class Unreachable(OutliveError):
    """NATS or the service behind it does not answer; nothing is known to be stored.

    Causes: wrong URL, no server, no worker that answers questions.
    """
