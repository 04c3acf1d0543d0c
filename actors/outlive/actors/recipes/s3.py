"""An object in S3 or a store that speaks its API, asked for by HEAD over a presigned or plain URL.

How to ask: a name that carries the key (``reports/{op.uuid}.pdf``) makes the question exact: who finds the object has
found this effect. Where the name is shared, compare its ETag with that of the bytes (`etag`), or send the key along as
``x-amz-meta-outlive-operation`` (`metadata`).

When a "no" may be trusted: `SETTLE` after the deadline. The store is consistent at once, but a PUT that is on its way
counts when its last byte has arrived.

How long keys live: without end (`KEY_TTL` is None) as long as the same bytes go to the same name: twice is the same as
once, so such a tool is ``idempotent=True`` and needs this recipe only to save the second transfer.

How to undo: DELETE, if nothing was there before. With versioning delete the version that the PUT returned as
``x-amz-version-id``; without it the object that was overwritten is gone.
"""

import hashlib
from collections.abc import Mapping
from typing import Final

from outlive.actors import http
from outlive.actors.recipes.asking import LookedUp, look
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

SETTLE: Final = 60.0
"""Seconds: an idle connection is closed by the store much earlier."""

KEY_TTL: Final = None
"""For ever."""

HEADER: Final = "x-amz-meta-outlive-operation"
"""The header that carries the key, on the way in and out."""


def metadata(op: Operation) -> dict[str, str]:
    """Return the headers to send with the PUT (a presigned URL must have been signed with them)."""
    return {HEADER: op.key}


def etag(body: bytes) -> str:
    """Return the ETag of an object that was sent in one piece (not in parts, not under a KMS key)."""
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


async def stored(
    op: Operation, url: str, *, expected: str | None = None, headers: Mapping[str, str] | None = None
) -> Outcome[str]:
    """Ask whether this operation stored the object at the URL; happened gives its ETag.

    Args:
        op: the operation whose answer was lost.
        url: presigned for HEAD, or plain.
        expected: the ETag of the bytes (`etag`), where the name may be used by others and the key was not sent along.
        headers: for instance the credentials.
    """
    found = await look(url, method="HEAD", headers=headers)
    match found:
        case LookedUp(answer=http.Answer(ok=True, headers=shown)):
            return _compared(op, shown, expected)
        case LookedUp(answer=http.Answer(status=404)):
            return Outcome.did_not_happen()
        case LookedUp(answer=http.Answer(status=403)):
            return Outcome.unknown("403: not allowed to look; without the right to list, absent objects look so too")
        case _:
            return Outcome.unknown(found.why)


def _compared(op: Operation, shown: Mapping[str, str], expected: str | None) -> Outcome[str]:
    tag, key = shown.get("etag", ""), shown.get(HEADER)
    if key == op.key or (key is None and expected in (None, tag)):
        return Outcome.happened(tag)
    whose = f"of operation {key}" if key else f"with the ETag {tag} instead of {expected}"
    return Outcome.unknown(f"there is an object {whose}: ours may never have arrived, or was overwritten")
