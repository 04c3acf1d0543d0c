"""The remote of chaos apps: the fake service, which honours no key of theirs, so that a repeat counts."""

import functools
import os

import httpx

from outlive.actors import Operation, Outcome
from outlive.actors.testing.fake_service import URL_VARIABLE, FakeClient
from outlive.protocol.errors import NotSent, OutcomeUnknown


@functools.cache
def _client(url: str) -> FakeClient:
    return FakeClient(url)


def service() -> FakeClient:
    """The service of the test that runs."""
    return _client(os.environ[URL_VARIABLE])


def send(name: str, key: str, body: object = None) -> int:
    """One effect without the protection of keys; a cut connection is an unknown outcome."""
    try:
        return service().effect(name, {"key": key} if body is None else body, key=key, keys=False)
    except httpx.ConnectError as error:
        raise NotSent(str(error)) from error
    except httpx.TransportError as error:
        raise OutcomeUnknown(f"the answer was lost: {error!r}") from error


def found(op: Operation) -> Outcome[int]:
    """What the service knows of an operation."""
    done = service().effects(key=op.key)
    return Outcome.happened(done[0].id, matches=len(done)) if done else Outcome.did_not_happen()
