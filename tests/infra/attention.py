"""What readers of a task's progress do, for tests that begin when a reader has begun."""

import asyncio
from collections.abc import Callable

import pytest
from nats.aio.msg import Msg

from outlive.infra import reader
from outlive.infra.questions import QuestionRefused
from outlive.protocol.errors import Unreachable


class Attention:
    """Watches every reader of this process.

    Attributes:
        heard: live messages that readers took in, or passed over.
        rests: how often a reader had all that there is, and waited for live messages.
        searches: how often a reader had looked into the stream, because no worker answered.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heard = self.rests = self.searches = 0
        self._news = asyncio.Event()
        self._resting = False
        wait, receive, search = reader._Reader.wait, reader._Reader.receive, reader._Reader._search_stream

        async def waits(own: reader._Reader) -> None:
            self.rests += 1
            self._resting = True
            self._news.set()
            await wait(own)

        async def receives(own: reader._Reader, message: Msg) -> None:
            self._resting = False
            await receive(own, message)
            self.heard += 1
            self._news.set()

        async def searches(own: reader._Reader, error: Unreachable | QuestionRefused) -> None:
            await search(own, error)
            self.searches += 1
            self._news.set()

        monkeypatch.setattr(reader._Reader, "wait", waits)
        monkeypatch.setattr(reader._Reader, "receive", receives)
        monkeypatch.setattr(reader._Reader, "_search_stream", searches)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when something holds; it is looked at after each move of a reader."""
        async with asyncio.timeout(30):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def at_rest(self) -> None:
        """Return when a reader has all that there is and nothing has come since: what comes now, it is told live."""
        await self.until(lambda: self._resting)
