"""A payment API in the manner of Stripe: idempotency keys, and metadata that can be read back.

How to ask: put the key into the metadata (`metadata`) beside sending it as ``Idempotency-Key``. Sending the same
request again with the same key is the better question while the remote knows the key: it answers with the first
result, also with a stored error. `payment` asks afterwards, or where a key must not be sent again: it lists what was
made since the intent (the list is consistent at once; the search index may lag by minutes) and compares the metadata.

When a "no" may be trusted: `SETTLE` after the deadline; what a gateway took in time is shown in the list by then.

How long keys live: `KEY_TTL`; later the same key makes a second payment. A stored 500 is replayed under its key for
that long: to go on, resolve the operation with a new one, after this recipe has said that nothing was made.

How to undo: a refund (``POST /v1/refunds``) as a tool of its own with its own key, or a cancel while it is not captured.
A refund gives the money back, not the fee, and the customer has seen both.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from outlive.actors.recipes.asking import LookedUp, look
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

SETTLE: Final = 120.0
"""Seconds: such requests are bounded by the service at about 80."""

KEY_TTL: Final = 86_400.0
"""Seconds: keys are kept for at least a day."""

METADATA: Final = "outlive_operation"
"""The field of the metadata that carries the key."""

_SKEW: Final = timedelta(minutes=5)
_REFUSED: Final = frozenset({"failed", "requires_payment_method"})
_PAGES: Final = 100


def metadata(op: Operation) -> dict[str, str]:
    """Return the metadata to send along, so that the payment can be found again."""
    return {METADATA: op.key}


async def payment(op: Operation, url: str, *, headers: Mapping[str, str]) -> Outcome[Any]:
    """Ask whether this operation made a payment.

    Args:
        op: the operation whose answer was lost.
        url: of the collection, for instance ``https://api.stripe.com/v1/payment_intents``; charges, refunds and
            transfers are listed in the same way.
        headers: the credentials.

    Returns:
        Happened, with the object as the remote shows it now: read its status, it may be processing or canceled.
        Refused, with the remote's reason, when the payment was declined.
    """
    params: dict[str, Any] = {"limit": 100, "created[gte]": int((op.started_at - _SKEW).timestamp())}
    matches: list[dict[str, Any]] = []
    for _ in range(_PAGES):
        page = await look(url, params=params, headers=headers)
        match page:
            case LookedUp(value={"data": list(data), **more}, why=""):
                matches += [item for item in data if (item.get("metadata") or {}).get(METADATA) == op.key]
                if not (more.get("has_more") and data):
                    return _outcome(matches)
                params["starting_after"] = data[-1]["id"]
            case _:
                return Outcome.unknown(page.why or f"{url} did not answer with a list")
    return Outcome.unknown(f"{url} has made more than {_PAGES * 100} objects since then")


def _outcome(matches: list[dict[str, Any]]) -> Outcome[Any]:
    if not matches:
        return Outcome.did_not_happen()
    made = [item for item in matches if item.get("status") not in _REFUSED]
    return Outcome.happened(made[0], matches=len(made)) if made else _declined(matches[0])


def _declined(item: dict[str, Any]) -> Outcome[Any]:
    error = item.get("last_payment_error") or {}
    reason = item.get("failure_message") or error.get("message") or error.get("code")
    if reason is None:  # made, and nobody has tried to pay with it yet
        return Outcome.happened(item)
    return Outcome.refused(str(reason))
