"""How the recipes ask over HTTP: whatever is no clear answer becomes a reason, never a "no"."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from outlive.actors import http
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import ToolError

PAGES: Final = 100
"""Pages that are read at most: beyond them the question must be narrower."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one page."""


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What came of one question.

    Attributes:
        answer: None when none came.
        value: its decoded body, with a 2xx.
        why: what keeps it from being an answer; empty with a 2xx.
    """

    answer: http.Answer | None
    value: Any = None
    why: str = ""

    @property
    def ok(self) -> bool:
        """A 2xx whose body could be read."""
        return not self.why


async def look(
    url: str,
    *,
    method: str = "GET",
    params: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> LookedUp:
    """Ask once. Never raises for what the remote or the network does."""
    options: http.Options = {"headers": headers or {}}
    if params:
        options["params"] = params
    try:
        answer = await http.ask(method, url, max_bytes=MAX_BYTES, **options)
        if answer.ok:
            return LookedUp(answer, None if method == "HEAD" else answer.decode())
    except (ToolError, NotStorable) as error:
        return LookedUp(None, why=f"it could not be asked: {error}")
    return LookedUp(answer, why=f"{method} {http.shown_url(url)} answered {answer.status}: {answer.text[:200]}")


async def pages(
    url: str, *, params: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
) -> AsyncIterator[LookedUp]:
    """Give one page after the other by ``Link: rel="next"``; the last one is not ok when it could not be read.

    A next page on another host is not followed: the credentials are not meant for it.
    """
    following, origin = url, http.origin(url)
    for _ in range(PAGES):
        page = await look(following, params=params, headers=headers)
        yield page
        after = page.answer.links.get("next") if page.ok and page.answer else None
        if after is None:
            return
        following, params = http.joined(following, after), None  # the link carries them
        if http.origin(following) != origin:
            yield LookedUp(None, why=f"the next page of {http.shown_url(url)} is on another host")
            return
    yield LookedUp(None, why=f"{http.shown_url(url)} has more than {PAGES} pages: narrow the question down")
