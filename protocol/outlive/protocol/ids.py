"""Names on the wire: what an id may look like, and how new ones are made.

An id is a NATS subject token, a column of every primary key and a word on a command line, so one narrow alphabet
serves all three. Ids are case-sensitive; one that begins with ``_`` is ours (rows the system writes for itself).
"""

import base64
import hashlib
import os
import re
import time
import uuid
from typing import Final

TENANT_LENGTH: Final = 32
ID_LENGTH: Final = 64
DEFAULT_TENANT: Final = "default"

_ALPHABET: Final = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]*", re.ASCII)


class InvalidId(ValueError):
    """An id breaks the rule; the message names the id, its value and the rule."""


def check(what: str, value: object, *, longest: int = ID_LENGTH) -> str:
    """Return ``value`` if it is a valid id, else raise `InvalidId` with the rule.

    Args:
        what: the name of the id for the message, for instance ``task_id``.
        value: anything; only a string can pass.
        longest: the largest number of characters, 64 except for tenants.
    """
    if isinstance(value, str) and len(value) <= longest and _ALPHABET.fullmatch(value):
        return value
    shown = repr(value) if len(repr(value)) <= 80 else repr(value)[:77] + "..."
    raise InvalidId(
        f"{what} {shown} is not allowed: 1 to {longest} characters of A-Z a-z 0-9 _ -, not beginning with _"
    )


def check_tenant(value: object) -> str:
    """Return a valid tenant (1 to 32 characters) or raise `InvalidId`."""
    return check("tenant", value, longest=TENANT_LENGTH)


def new_id() -> str:
    """Make a UUID version 7 (RFC 9562) as text: sorts by the time it was made."""
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    number = number & ~(0xF << 76) | (0x7 << 76)
    number = number & ~(0x3 << 62) | (0x2 << 62)
    return str(uuid.UUID(int=number))


def child_id(tenant: str, parent: str, step_id: str) -> str:
    """Return the id of the child task that a step of a parent starts: the same after every crash (26 characters)."""
    digest = hashlib.blake2b(f"{tenant}/{parent}:{step_id}".encode(), digest_size=16).digest()
    return base64.b32encode(digest).decode().rstrip("=").lower()
