"""Commands: instructions to a task, each a NATS message with a dedup id.

One tagged union (field ``type``), which later commands extend. Unknown fields are tolerated, so an older reader
understands a newer writer. What is checked against a task's state is in `outlive.protocol.lifecycle`.
"""

from typing import Annotated, Any, Final, TypeAlias

import msgspec

from outlive.protocol.task import Failure, Status

INPUT_LIMIT: Final = 900 * 1024
"""The most bytes of a submit's input or a signal's value."""

_NO_NUL: Final = "^[^\\u0000]*$"  # these words become columns, and Postgres has no NUL in a text
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=_NO_NUL)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=10_000, pattern=_NO_NUL)]
SignalName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$(?!\n)")]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-100, le=100)]
Labels: TypeAlias = Annotated[dict[Name, Name], msgspec.Meta(max_length=64)]


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every command carries.

    Attributes:
        command_id: the dedup id. In the body it wins over the header ``Nats-Msg-Id``; without both the message is
            named by its place: when the stream was made, the message's time and sequence.
        by: who gives the command. Shown as *claimed* unless the subject's principal token says the same.
        note: free text for the audit trail.
    """

    command_id: str | None = None
    by: Name | None = None
    note: Text | None = None


class Submit(Command, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    """Make a task. Identified by its task as well: the same kind and input again is a duplicate, else a conflict.

    Attributes:
        kind: the name of the code that runs the task.
        input: the arguments by name (or ``goal`` for kinds that take a goal). Up to 900 KiB.
        priority: -100 to 100, higher first.
        labels: names for finding the task again: at most 64, 1 to 200 characters each.
        policy: options that may only tighten the kind's own.
    """

    kind: Name
    input: dict[str, Any] = {}
    goal: str | None = None
    priority: Priority = 0
    labels: Labels = {}
    policy: dict[str, Any] = {}


class Pause(Command, frozen=True, kw_only=True, omit_defaults=True, tag="pause"):
    """Stop before the next step, until `Resume`. An operation in flight ends first."""

    reason: Text | None = None


class Resume(Command, frozen=True, kw_only=True, omit_defaults=True, tag="resume"):
    """Take back an operator's pause; the task goes on when no other reason is left."""


class Cancel(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """Start nothing more. The final event lists what happened, what is unknown and what was never started."""

    reason: Text | None = None


class Signal(Command, frozen=True, kw_only=True, omit_defaults=True, tag="signal"):
    """Hand a value to ``task.wait_for(name)``; kept in order per name until it is taken. Up to 900 KiB."""

    name: SignalName
    value: Any = None


AnyCommand: TypeAlias = Submit | Pause | Resume | Cancel | Signal
"""What clients may send."""


class ChildEnded(Command, frozen=True, kw_only=True, omit_defaults=True, tag="child"):
    """A child task ended: written to its parent's mailbox by the system, never taken from a client.

    Attributes:
        child: the child's task id.
        status: succeeded, failed or cancelled.
        result: the child's result as JSON, where it succeeded.
        failure: why it failed or was cancelled, where that is known.
    """

    child: str
    status: Status
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


Internal: TypeAlias = ChildEnded
"""What only the system writes; such rows have command ids that begin with ``_``."""

VERBS: Final = frozenset({"submit", "pause", "resume", "cancel", "signal"})
"""The verbs of this version; a subject with another verb is answered ``invalid``."""
