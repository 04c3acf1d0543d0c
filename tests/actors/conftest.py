"""Remotes for tests of what speaks HTTP."""

from collections.abc import AsyncIterator

import pytest

from outlive.actors import http
from tests.actors.remote import Remote, serving_http


@pytest.fixture
async def remote(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remote]:
    """A remote of its own, reached without a proxy."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with serving_http() as running:
        yield running
        await http.close()
        http.close_sync()
