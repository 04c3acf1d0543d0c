"""An issue on GitHub (or a server that speaks its API), found by a marker in its body.

How to ask: write `marker` at the end of the body; it is an HTML comment, so readers do not see it. `issue` lists the
repository's issues that were touched since the intent and reads their bodies. The search API is not used: its index
lags, and leaves new accounts out.

When a "no" may be trusted: `SETTLE` after the deadline. The API ends a request after 10 seconds by itself, and the
list shows an issue as soon as it is made.

How long keys live: there are none (`KEY_TTL` is 0). A second request makes a second issue, so leave ``idempotent`` out.

How to undo: close it (``PATCH .../issues/7`` with ``state=closed, state_reason=not_planned``). Watchers have had a mail
by then; only an owner can delete an issue.
"""

from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any, Final

from outlive.actors.recipes.lookup import by_search
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

SETTLE: Final = 30.0
"""Seconds."""

KEY_TTL: Final = 0.0
"""No keys."""

_SKEW: Final = timedelta(minutes=5)


def marker(op: Operation) -> str:
    """Return the line to append to the body of an issue (or comment)."""
    return f"\n\n<!-- outlive {op.uuid} -->\n"


async def issue(
    op: Operation, repository: str, *, token: str | None = None, api: str = "https://api.github.com"
) -> Outcome[int]:
    """Ask whether this operation opened an issue; happened gives its number.

    Args:
        op: the operation whose answer was lost.
        repository: ``owner/name``.
        token: must be able to read the repository: else it looks as if there were none, which is no "no".
        api: of another server.
    """
    since = (op.started_at - _SKEW).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    mark = marker(op).strip()

    def ours(item: Mapping[str, Any]) -> bool:
        return mark in (item.get("body") or "")

    return await by_search(
        f"{api}/repos/{repository}/issues",
        params={"state": "all", "since": since, "per_page": 100},
        headers=_headers(token),
        ours=ours,
        result=lambda item: int(item["number"]),
    )


def _headers(token: str | None) -> dict[str, str]:
    headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
    return headers if token is None else {**headers, "Authorization": f"Bearer {token}"}
