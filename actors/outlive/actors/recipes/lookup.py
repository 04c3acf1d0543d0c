"""Any HTTP service that can show what it has: by the key itself, or by a search.

How to ask: `by_key` where the effect has an address of its own that follows from the key (``GET /orders/{op.uuid}``),
`by_search` where it must be found in a list. The first is better: it needs no index that lags.

When a "no" may be trusted: after the deadline, `SETTLE`, and the lag of what is asked. A replica, a cache or a search
index that runs behind shows nothing for a while; name that lag, and give the tool ``settle=SETTLE + lag``.

How long keys live: `KEY_TTL`, what most services with ``Idempotency-Key`` promise; a look-up by an own id has no end.

How to undo: whatever the service offers for what it returned; make it a tool of its own, so that it has a key too.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from outlive.actors import http
from outlive.actors.recipes.asking import LookedUp, look, pages
from outlive.protocol.operations import Outcome

SETTLE: Final = 60.0
"""Seconds after the deadline in which gateways and queues may still deliver a request that was cut off."""

KEY_TTL: Final = 86_400.0
"""Seconds: a day."""


async def by_key(
    url: str, *, headers: Mapping[str, str] | None = None, result: Callable[[Any], Any] = lambda found: found
) -> Outcome[Any]:
    """Ask for the one thing at an address made of the key: 2xx = happened, 404 or 410 = not.

    Args:
        url: with the key in it, for instance ``f"{API}/orders/{op.uuid}"``.
        headers: for instance the credentials.
        result: makes the tool's result of the decoded answer.
    """
    found = await look(url, headers=headers)
    match found:
        case LookedUp(answer=http.Answer(status=404 | 410)):
            return Outcome.did_not_happen()
        case LookedUp(answer=http.Answer(ok=True), value=value):
            return Outcome.happened(result(value))
        case _:
            return Outcome.unknown(found.why)


async def by_search(
    url: str,
    *,
    ours: Callable[[Any], bool],
    items: Callable[[Any], list[Any]] = list,
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    result: Callable[[Any], Any] = lambda found: found,
) -> Outcome[Any]:
    """Look through a list, page after page (``Link: rel="next"``), for what carries the key.

    Args:
        url: of the list or the search.
        ours: tells whether an item is this effect, for instance ``lambda item: item["reference"] == op.key``.
        items: takes the list out of a decoded page.
        params: narrow it down, for instance to what was made since ``op.started_at``.
        headers: for instance the credentials.
        result: makes the tool's result of the item that was found (the first, if there are several).
    """
    matches: list[Any] = []
    why = ""
    async for page in pages(url, params=params, headers=headers):
        try:
            why = page.why
            matches += [item for item in items(page.value) if ours(item)] if page.ok else []
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"{url} answered in a form that was not expected: {type(error).__name__}: {error}"
            break
    if matches:
        return Outcome.happened(result(matches[0]), matches=len(matches))
    return Outcome.unknown(why) if why else Outcome.did_not_happen()
