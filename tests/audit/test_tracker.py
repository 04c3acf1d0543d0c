"""The tracker: one ticket per key, whatever is sent how often; gone with its parent."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from outlive.actors.audit import tracker


async def opened(url: str, *, body: str, key: str) -> int:
    """Open a ticket and return its number."""
    return await asyncio.to_thread(tracker.send, url, title="t", body=body, key=key)


async def counted(file: Path) -> list[int]:
    """How often each ticket was asked for, from the file."""
    return [ticket.requests for ticket in await asyncio.to_thread(tracker.tickets_in, file)]


async def test_the_same_key_opens_one_ticket(tmp_path: Path) -> None:
    file = tmp_path / "tickets.db"
    async with tracker.running(file) as url, httpx.AsyncClient(trust_env=False) as http:
        first = await opened(url, body="b", key="k1")
        again = await opened(url, body="b", key="k1")
        other = await opened(url, body="b", key="k2")
        assert first == again != other
        listed = (await http.get(f"{url}/tickets")).json()
        assert [(ticket["number"], ticket["requests"]) for ticket in listed] == [(first, 2), (other, 1)]
    assert await counted(file) == [2, 1]


async def test_a_key_for_another_ticket_and_nonsense_are_refused(tmp_path: Path) -> None:
    async with tracker.running(tmp_path / "tickets.db") as url, httpx.AsyncClient(trust_env=False) as http:
        await opened(url, body="b", key="k")
        with pytest.raises(httpx.HTTPStatusError) as refused:
            await opened(url, body="another", key="k")
        assert refused.value.response.status_code == 422
        assert "another ticket" in refused.value.response.json()["error"]
        for body in ("{", "[]", '{"title": "t"}'):
            assert (await http.post(f"{url}/tickets", content=body)).status_code == 422
        assert (await http.get(f"{url}/else")).status_code == 404
        assert (await http.post(f"{url}/else")).status_code == 404


async def test_tickets_outlive_the_tracker(tmp_path: Path) -> None:
    file = tmp_path / "tickets.db"
    numbers: list[int] = []
    for _ in range(2):
        async with tracker.running(file) as url:
            numbers.append(await opened(url, body="b", key="k"))
    assert numbers[0] == numbers[1]
    assert await counted(file) == [2]


def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    parent = (
        "import os, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'outlive.actors.audit.tracker', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", parent, str(tmp_path / "tickets.db")], stdout=subprocess.PIPE, check=False
    )
    pid = int(ran.stdout)
    while _alive(pid):  # the test's timeout is the limit
        pass


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
