"""MCP servers for tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.mcp.scene import Remote, remote


@pytest.fixture(params=["stdio", "http"])
async def mcp(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remote]:
    """A server of its own, over each transport."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with remote(tmp_path, request.param) as running:
        yield running


@pytest.fixture
async def stdio(tmp_path: Path) -> AsyncIterator[Remote]:
    """A server of its own on standard streams."""
    async with remote(tmp_path, "stdio") as running:
        yield running
