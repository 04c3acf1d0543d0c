"""A fake remote service for tests: counts effects by key, loses answers, hangs, throttles, acts late.

::

    async with fake_service() as service:
        await service.behave("lose_answer", times=3)
        ...                                    # tools: FakeClient(service.url).effect("mail", {...}, key=op.key)
        assert set((await service.counts()).keys.values()) == {1}

It runs in a process of its own with a file of its own (see `__main__` for what it speaks), survives SIGKILL of
everybody else, and ends with the process that started it. With `with` instead of `async with`, every call blocks.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import httpx

from outlive.actors.context import Cause, cause

Action: TypeAlias = Literal["lose_answer", "drop", "hang", "late", "throttle", "fail"]
"""See `outlive.actors.testing.fake_service.__main__.Behaviour`."""

URL_VARIABLE: Final = "FAKE_SERVICE_URL"
"""Environment variable in which a test tells its worker processes where the service is."""


class Counts(NamedTuple):
    """How often things were done."""

    keys: Mapping[str, int]
    """Effects by idempotency key; more than 1 is an effect that happened twice."""
    names: Mapping[str, int]
    """Effects by name, with and without a key."""
    requests: Mapping[str, int]
    """Requests by key: repeats that the service answered from its memory count here."""


class Effect(NamedTuple):
    """One thing that was done to the world."""

    id: int
    name: str
    key: str | None
    body: Any
    at: float
    """Seconds since 1970, by the service's own clock."""
    cause: Cause | None = None
    """On whose behalf: of a tool's code that was called by a task (see `outlive.actors.context.cause`)."""


def effect_of(row: Mapping[str, Any]) -> Effect:
    """Read an effect as the service keeps it."""
    effect = Effect(**row)
    return effect if effect.cause is None else effect._replace(cause=Cause(*effect.cause))  # JSON knows no tuples


class FakeClient:
    """Speaks to a fake service by its URL; blocks. For synchronous tools and tests; safe for threads."""

    def __init__(self, url: str) -> None:
        """Args: url: as `FakeService.url` tells it, perhaps in another process."""
        self.url = url
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def effect(self, name: str, body: object = None, *, key: str | None = None, keys: bool = True) -> int:
        """Do an effect and return its number: the same one for the same key unless `keys` is False.

        Raises:
            httpx.HTTPStatusError: the service refused (422, 429 or what it was told to answer).
            httpx.TransportError: no answer; it may have been done.
        """
        headers = {"Outlive-Cause": json.dumps(found)} if (found := cause()) is not None else {}
        headers.update({"Idempotency-Key": key} if key else {})
        path = f"/effect/{name}" if keys else f"/effect/{name}?keys=off"
        answer = self._http.post(path, json=body, headers=headers).raise_for_status()
        number: int = answer.json()["effect"]
        return number

    def counts(self) -> Counts:
        """How often things were done."""
        return Counts(**self._http.get("/counts").raise_for_status().json())

    def effects(self, *, key: str | None = None, name: str | None = None) -> list[Effect]:
        """What was done, oldest first."""
        asked = {field: value for field, value in (("key", key), ("name", name)) if value is not None}
        return [effect_of(row) for row in self._http.get("/effects", params=asked).raise_for_status().json()]

    def behave(
        self,
        action: Action,
        *,
        name: str | None = None,
        times: int | None = 1,
        after: int = 0,
        seconds: float = 1.0,
        status: int = 500,
    ) -> None:
        """Treat the next `times` effects (None: all) called `name` (None: any) so, once `after` of them have passed."""
        told = {"name": name, "times": times, "after": after, "seconds": seconds, "status": status}
        self._http.post("/behave", json={"action": action, **told}).raise_for_status()

    def calm(self) -> None:
        """Forget all behaviours."""
        self._http.delete("/behave").raise_for_status()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


class FakeService:
    """A running fake service, for asynchronous tests: `FakeClient`'s calls in a thread."""

    def __init__(self, client: FakeClient) -> None:
        """Made by `fake_service`."""
        self._client = client

    @property
    def url(self) -> str:
        """Where it listens, for tools in other processes."""
        return self._client.url

    async def effect(self, name: str, body: object = None, *, key: str | None = None, keys: bool = True) -> int:
        """See `FakeClient.effect`."""
        return await asyncio.to_thread(self._client.effect, name, body, key=key, keys=keys)

    async def counts(self) -> Counts:
        """See `FakeClient.counts`."""
        return await asyncio.to_thread(self._client.counts)

    async def effects(self, *, key: str | None = None, name: str | None = None) -> list[Effect]:
        """See `FakeClient.effects`."""
        return await asyncio.to_thread(self._client.effects, key=key, name=name)

    async def behave(
        self,
        action: Action,
        *,
        name: str | None = None,
        times: int | None = 1,
        after: int = 0,
        seconds: float = 1.0,
        status: int = 500,
    ) -> None:
        """See `FakeClient.behave`."""
        await asyncio.to_thread(
            self._client.behave, action, name=name, times=times, after=after, seconds=seconds, status=status
        )

    async def calm(self) -> None:
        """See `FakeClient.calm`."""
        await asyncio.to_thread(self._client.calm)


class fake_service:  # noqa: N801  # used like a function: `with fake_service() as service`
    """Start a fake service: `async with` gives a `FakeService`, `with` a `FakeClient`.

    Args:
        file: where it keeps its effects (SQLite); they are there again when another one is started on it.
            None: a temporary file.
        port: None takes a free one.
    """

    def __init__(self, file: Path | None = None, *, port: int | None = None) -> None:
        """Nothing starts before `with`."""
        self._file = file
        self._port = port or 0

    def __enter__(self) -> FakeClient:
        """Start it and wait until it listens."""
        self._folder = tempfile.TemporaryDirectory(prefix="outlive-fake-", ignore_cleanup_errors=True)
        file = self._file or Path(self._folder.name, "effects.sqlite")
        server = Path(__file__).with_name("__main__.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(server), str(file), str(self._port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._stop()
            raise RuntimeError(f"the fake service did not start on {file}: see its message above")
        self._client = FakeClient(json.loads(line)["url"])
        return self._client

    def __exit__(self, *_: object) -> None:
        """End it."""
        self._client.close()
        self._stop()

    async def __aenter__(self) -> FakeService:
        """Start it, in a thread."""
        return FakeService(await asyncio.to_thread(self.__enter__))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it, in a thread."""
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    def _stop(self) -> None:
        with self._process:  # closes the pipes, which ends it, and waits
            pass
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Its process id, once started."""
        return self._process.pid


__all__ = ["URL_VARIABLE", "Action", "Counts", "Effect", "FakeClient", "FakeService", "fake_service"]
