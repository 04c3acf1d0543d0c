"""A fake world in the test's own process, and the question whether tools do what they declare.

`FakeWorld` has the calls of `FakeClient`, and no process and no port: for workers that run in the test. Every mutation is
kept with its cause, in both: which task, step, tool, operation key, attempt and worker::

    world = FakeWorld()

    @app.tool(read_only=True)
    def find(text: str) -> int:
        return world.effect("index", text)            # it changes something after all

    ...                                               # a task has called it
    await assert_as_declared(world)                   # AssertionError: find() is declared read_only, and did: index ...
"""

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from outlive.actors.context import Cause, cause
from outlive.actors.testing.fake_service import Action, Counts, Effect, FakeClient, FakeService, effect_of
from outlive.actors.testing.fake_service.__main__ import Behaviour, World

_SHOWN: Final = 5


class FakeWorld:
    """A remote in this process that counts effects by key, loses answers, hangs, throttles, acts late; safe for threads.

    Args:
        honours_keys: the same key does the effect once; False: keys are written down and not honoured, whatever a tool
            declares.
    """

    def __init__(self, *, honours_keys: bool = True) -> None:
        """Nothing was done yet."""
        self._world = World(Path(":memory:"))
        self._honours = honours_keys

    def effect(self, name: str, body: object = None, *, key: str | None = None, keys: bool = True) -> int:
        """Do an effect and return its number, see `FakeClient.effect`, which raises the same errors.

        Raises:
            httpx.HTTPStatusError: refused (422: another body under the key; 429 or another, as it was told).
            httpx.TransportError: no answer; it may have been done.
        """
        why, sent = json.dumps(cause()), json.dumps(body)
        honour = keys and self._honours
        told = self._world.arrived(name, key)
        action = told.action if told is not None else ""
        if told is not None and action in {"fail", "throttle"}:
            raise _refused(told.status if action == "fail" else 429, "as told", told.seconds)
        if told is not None and action == "late":
            later = threading.Timer(
                told.seconds, self._world.perform, (name, key, sent), {"honour": honour, "cause": why}
            )
            later.daemon = True
            later.start()
        if action in {"late", "drop"}:
            raise httpx.RemoteProtocolError(f"{name}: the connection broke, as told")
        status, answer, _ = self._world.perform(name, key, sent, honour=honour, cause=why)
        if action == "lose_answer":
            raise httpx.RemoteProtocolError(f"{name}: the connection broke, as told")
        if told is not None and action == "hang":
            time.sleep(told.seconds)
        if status != 200:
            raise _refused(status, answer["error"])
        number: int = answer["effect"]
        return number

    def counts(self) -> Counts:
        """How often things were done."""
        return Counts(**self._world.counts())

    def effects(self, *, key: str | None = None, name: str | None = None) -> list[Effect]:
        """What was done, oldest first, each with its cause."""
        return [effect_of(row) for row in self._world.effects(key, name)]

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
        """Treat the next effects so, see `FakeClient.behave`.

        Raises:
            ValueError: there is no such behaviour.
        """
        self._world.behave(Behaviour(action, name, times, after, seconds, status))

    def calm(self) -> None:
        """Forget all behaviours."""
        self._world.behave(None)


def _refused(status: int, why: str, after: float | None = None) -> httpx.HTTPStatusError:
    headers = {"Retry-After": f"{after:g}"} if status == 429 and after is not None else {}
    request = httpx.Request("POST", "http://fake.world/")
    answer = httpx.Response(status, headers=headers, json={"error": why}, request=request)
    return httpx.HTTPStatusError(f"{status}: {why}", request=request, response=answer)


async def effects_of(world: FakeWorld | FakeClient | FakeService) -> list[Effect]:
    """What was done in a fake world of whatever kind, oldest first."""
    return await world.effects() if isinstance(world, FakeService) else world.effects()


async def assert_as_declared(world: FakeWorld | FakeClient | FakeService) -> None:
    """No tool did to the world what its declaration rules out.

    ``read_only`` tools (and reconcilers and previews) did nothing. An operation of an ``idempotent`` one was done once
    however often it was sent: let answers be lost (``behave("lose_answer")``), or nothing is ever sent again.

    Raises:
        AssertionError: which tool did what, with task, step, operation key, attempt and worker of each mutation.
    """
    lies = _lies(await effects_of(world))
    assert not lies, "\n".join(lies[:_SHOWN] + ([f"and {len(lies) - _SHOWN} more"] if len(lies) > _SHOWN else []))


def _lies(effects: Sequence[Effect]) -> list[str]:
    lies: list[str] = []
    first: dict[tuple[str, str], tuple[Cause, Effect]] = {}
    for effect in effects:
        if (why := effect.cause) is None:
            continue
        if why.declared == "read_only":
            what = f"{why.tool}() is declared read_only"
            if why.function != why.tool:
                what = f"{why.function}() of {why.tool} may change nothing"
            lies.append(f"{what}, and did: {_told(effect, why)}")
        elif why.declared == "idempotent":
            earlier, once = first.setdefault((why.key, effect.name), (why, effect))
            if once is not effect and earlier.attempt != why.attempt:
                lies.append(
                    f"{why.tool}() is declared idempotent, and did it twice: {_told(once, earlier)}; {_told(effect, why)}"
                )
    return lies


def _told(effect: Effect, why: Cause) -> str:
    body: Any = json.dumps(effect.body)
    shown = body if len(body) <= 80 else f"{body[:77]}..."
    return (
        f"{effect.name} {shown} (task {why.task_id}, step {why.step_id}, operation {why.key}, attempt {why.attempt}, "
        f"worker {why.worker})"
    )
