"""From a message of the command stream to what it asks for, decided from its bytes alone.

A body is decoded once as plain JSON: for its id, its digest (numbers as written) and a check of its form. What the
store knows about the task and the id is not looked at here; that is `outlive.infra.admission`.
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from outlive.infra.pull import Message
from outlive.protocol import codec, ids
from outlive.protocol.answers import Code
from outlive.protocol.commands import VERBS, AnyCommand, Submit, letter_name
from outlive.protocol.subjects import CommandSubject, Subjects

UNKNOWN_TENANT: Final = "_"
"""Owner of dead letters whose subject names no valid tenant."""

_CLIENT_HEADER: Final = re.compile(r"(.+):[0-9a-f]{16}")  # our clients' Nats-Msg-Id: the id and the digest's beginning


@dataclass(frozen=True, slots=True)
class Submission:
    """What a submit adds to a command."""

    kind: str
    digest: bytes
    """Of kind, input, goal and policy: the task's identity."""
    input: bytes
    """``{"input": ..., "goal": ..., "policy": ...}``, each as it was written."""
    labels: str
    priority: int


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message of the command stream, read."""

    message: Message
    tenant: str
    task_id: str
    verb: str
    command_id: str | None
    """None: the message has no id that could be answered."""
    digest: bytes
    by: str | None = None
    claimed: bool = True
    name: str | None = None
    submission: Submission | None = None
    refusal: tuple[Code, str] | None = None
    """The answer, where the message alone decides it."""
    dead: str | None = None
    """Why it cannot be read: it becomes a dead letter."""

    def bury(self, reason: str) -> "Incoming":
        """Return it as a dead letter; what Postgres may have refused is left out."""
        refusal = (Code.INVALID, reason) if self.command_id else None
        return replace(self, dead=reason, refusal=refusal, by=None, name=None, submission=None)


class _Parts(msgspec.Struct):
    """Parts of a body as bytes: numbers stay as they were written."""

    input: msgspec.Raw = msgspec.Raw(b"{}")
    goal: msgspec.Raw = msgspec.Raw(b"null")
    policy: msgspec.Raw = msgspec.Raw(b"{}")
    value: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")
    args: msgspec.Raw = msgspec.Raw(b"null")


class _NotAllowed(Exception):
    """The sender may not say this."""


def read(message: Message, subjects: Subjects, created: str, limit: int) -> Incoming:
    """Read one message; never raises for what is in it.

    Args:
        message: as it came.
        subjects: of this installation.
        created: the stream's time of creation, part of the ids of messages that have none.
        limit: bytes of the largest input or value.
    """
    try:
        place = subjects.parse_command(message.subject)
    except ids.InvalidId as error:
        return _unplaced(message, str(error))
    try:
        value = _decoded(message.body)
        command_id = _command_id(value, message) or _placed_id(message, created)
        digest = codec.command_digest(place.tenant, place.task_id, place.verb, value)
    except (codec.NotJson, ids.InvalidId, RecursionError) as error:
        return _unread(message, place, str(error))
    return _checked(message, place, command_id, digest, value, limit)


def _decoded(body: bytes) -> dict[str, Any]:
    value = codec.plain(body)
    if isinstance(value, dict):
        return value
    raise codec.NotJson(f"the body is a JSON {type(value).__name__}; a command is an object")


def _placed_id(message: Message, created: str) -> str:
    """Name a message by its place: a stream that lost its end gives a sequence again, but not at the same time."""
    return f"{codec.digest(created.encode(), message.at.encode())[:5].hex()}-{message.seq}"


def given_id(message: Message) -> str | None:
    """Return the dedup id that the sender gave; None without a valid one."""
    try:
        value = _decoded(message.body)
    except codec.NotJson:
        value = {}
    try:
        return _command_id(value, message)
    except ids.InvalidId:
        return None


def _command_id(value: dict[str, Any], message: Message) -> str | None:
    """Find the dedup id: the body wins over the header; None where neither has one."""
    if value.get("command_id") is not None:
        return ids.check("command_id", value["command_id"])
    header = message.headers.get("Nats-Msg-Id")
    if header is None:
        return None
    ours = _CLIENT_HEADER.fullmatch(header)
    return ids.check("Nats-Msg-Id", ours[1] if ours else header)


def _unplaced(message: Message, reason: str) -> Incoming:
    """Keep a message whose subject names no task."""
    tokens = message.subject.split(".")
    try:
        tenant = ids.check_tenant(tokens[1] if len(tokens) > 1 else "")
    except ids.InvalidId:
        tenant = UNKNOWN_TENANT
    return Incoming(message, tenant, "", "", None, message.digest, dead=reason)


def _unread(message: Message, place: CommandSubject, reason: str) -> Incoming:
    """Keep a message whose body is no command; its header may say whom to answer."""
    try:
        command_id = _command_id({}, message)
    except ids.InvalidId:
        command_id = None
    found = Incoming(message, place.tenant, place.task_id, place.verb, command_id, message.digest)
    return found.bury(reason)


def _checked(
    message: Message, place: CommandSubject, command_id: str, digest: bytes, value: dict[str, Any], limit: int
) -> Incoming:
    found = Incoming(message, place.tenant, place.task_id, place.verb, command_id, digest, claimed=not place.principal)
    try:
        by = _by(place, value)
        command = _typed(place, value)
        _fits(message.body, limit)
    except _NotAllowed as error:
        return replace(found, refusal=(Code.NOT_ALLOWED, str(error)))
    except (ValueError, msgspec.ValidationError) as error:
        return replace(found, refusal=(Code.INVALID, str(error).replace("`raw`", "`float`")))
    if isinstance(command, Submit):
        return replace(found, by=by, submission=_submission(command, value, message.body))
    return replace(found, by=by, name=letter_name(command))


def _by(place: CommandSubject, value: dict[str, Any]) -> str | None:
    """Return who gives the command; raises _NotAllowed for a body that claims another place or person."""
    if "tenant" in value:
        raise _NotAllowed("the tenant is the one in the subject: leave `tenant` out of the body")
    if value.get("task_id", place.task_id) != place.task_id:
        raise _NotAllowed(f"the task is the one in the subject, {place.task_id}: leave `task_id` out of the body")
    by = value.get("by")
    if place.principal and by not in {None, place.principal}:
        raise _NotAllowed(f"you are logged in as {place.principal}: leave `by` out of the body, or say the same")
    return place.principal or (by if isinstance(by, str) else None)


def _typed(place: CommandSubject, value: dict[str, Any]) -> AnyCommand:
    """Check the form; raises ValueError with a sentence for people."""
    if place.verb not in VERBS:
        raise ValueError(f"there is no command {place.verb!r}; there are: {', '.join(sorted(VERBS))}")
    if value.get("type") != place.verb:
        raise ValueError(
            f"the subject says {place.verb!r} and the body's `type` {value.get('type')!r}: make them equal"
        )
    command: AnyCommand = msgspec.convert(value, AnyCommand)
    return command


def _fits(body: bytes, limit: int) -> None:
    if len(body) <= limit:
        return
    parts = msgspec.json.decode(body, type=_Parts)
    size = max(len(bytes(part)) for part in (parts.input, parts.value, parts.result, parts.args))
    if size > limit:
        raise ValueError(f"{size} bytes are too many, {limit} are allowed: store it elsewhere and pass a reference")


def _submission(command: Submit, value: dict[str, Any], body: bytes) -> Submission:
    parts = msgspec.json.decode(body, type=_Parts)
    kept = {"input": parts.input, "goal": parts.goal, "policy": parts.policy}
    return Submission(
        kind=command.kind,
        digest=codec.submit_digest(command.kind, value.get("input", {}), command.goal, command.policy),
        input=codec.encode(kept),
        labels=codec.encode(command.labels).decode(),
        priority=command.priority,
    )
