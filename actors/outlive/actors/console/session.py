"""One conversation with a running installation: a client for the time of one command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from outlive.actors.console.options import Given
from outlive.infra.client import Client

T = TypeVar("T")


def ask(given: Given, conversation: Callable[[Client], Awaitable[T]], *, by: str | None = None) -> T:
    """Connect, run the conversation, and return what it returns. Raises like `Client`."""

    async def connected() -> T:
        async with Client(given.settings(), by=by) as client:
            return await conversation(client)

    return asyncio.run(connected())
