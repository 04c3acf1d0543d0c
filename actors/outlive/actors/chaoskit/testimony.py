"""What is said between an explorer and the worker processes that it kills: one line of JSON each, over a Unix socket.

A line that was written before a SIGKILL is read after it: the kernel keeps it.
"""

from typing import Literal, TypeAlias

import msgspec

Nature: TypeAlias = Literal["read_only", "idempotent", "once"]
"""What a tool is declared as."""


class Serve(msgspec.Struct, frozen=True, tag="serve"):
    """Become a worker with these variables."""

    environment: dict[str, str]


class Arm(msgspec.Struct, frozen=True, tag="arm"):
    """Arm failpoints (as in ``OUTLIVE_FAILPOINTS``), and count all passes from now on."""

    failpoints: str = ""


Order: TypeAlias = Serve | Arm


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """It serves."""


class Armed(msgspec.Struct, frozen=True, tag="armed"):
    """What follows is counted anew."""


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """It could not serve, or ended by itself."""

    why: str


class Passed(msgspec.Struct, frozen=True, tag="passed"):
    """A failpoint was passed for the `n`-th time; told before it acts."""

    point: str
    n: int
    about: str = ""


class Called(msgspec.Struct, frozen=True, tag="called"):
    """A tool is about to be called. `arguments` are JSON without secrets, or a digest where they are long."""

    task_id: str
    step_id: str
    tool: str
    nature: Nature
    key: str
    arguments: str
    attempt: int
    reconciles: bool = False


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """It has returned: it has happened. `result` as stored, JSON; None where that is too long to be told, or not storable."""

    key: str
    attempt: int
    result: str | None = None


class Outside(msgspec.Struct, frozen=True, tag="outside"):
    """A task's function itself touched the world, between its steps."""

    kind: str
    task_id: str
    where: str
    what: str


Said: TypeAlias = Ready | Armed | Failed | Passed | Called | Returned | Outside

read_order = msgspec.json.Decoder(Order).decode
read_said = msgspec.json.Decoder(Said).decode


def line(said: Said | Order) -> bytes:
    """Return what is written."""
    return msgspec.json.encode(said) + b"\n"
