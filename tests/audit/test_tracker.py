"""The tracker: a ticket for whatever is sent, found by a text in it; one answer is lost; gone with its parent."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from outlive.actors.audit import tracker


async def opened(url: str, body: str, timeout: float = 8.0) -> int:  # noqa: ASYNC109  # the caller's patience is tested
    """Open a ticket and return its number."""
    return await asyncio.to_thread(tracker.send, url, title="t", body=body, timeout=timeout)


async def found(url: str, text: str) -> list[int]:
    """Ask for tickets."""
    return await asyncio.to_thread(tracker.find, url, text)


async def test_what_is_sent_twice_is_there_twice_and_can_be_found(tmp_path: Path) -> None:
    async with tracker.running(tmp_path / "tickets.db") as running:
        numbers = [await opened(running.url, body) for body in ("a [k:1]", "a [k:1]", "a [k:10]")]
        assert numbers == [1, 2, 3]
        assert await found(running.url, "[k:1]") == [1, 2]
        assert await found(running.url, "[k:2]") == []
    assert len(await asyncio.to_thread(tracker.tickets_in, tmp_path / "tickets.db")) == 3


async def test_one_answer_is_lost_though_the_ticket_is_made(tmp_path: Path) -> None:
    async with tracker.running(tmp_path / "tickets.db", lose=2) as running:
        assert await opened(running.url, "one") == 1
        with pytest.raises(httpx.ReadTimeout):
            await opened(running.url, "two", timeout=0.2)
        assert await running.lost() == 2
        assert await found(running.url, "two") == [2]
        assert await opened(running.url, "two") == 3


async def test_a_caller_that_dies_while_it_waits_ends_the_silence(tmp_path: Path) -> None:
    async with tracker.running(tmp_path / "tickets.db", lose=1) as running:
        send = "import sys; from outlive.actors.audit import tracker; tracker.send(sys.argv[1], title='t', body='b')"
        caller = await asyncio.create_subprocess_exec(sys.executable, "-c", send, running.url)
        assert await running.lost() == 1
        caller.kill()
        await caller.wait()
        assert await found(running.url, "b") == [1]


async def test_nonsense_is_refused(tmp_path: Path) -> None:
    async with tracker.running(tmp_path / "tickets.db") as running, httpx.AsyncClient(trust_env=False) as http:
        for body in ("{", "[]", '{"title": "t"}'):
            assert (await http.post(f"{running.url}/tickets", content=body)).status_code == 422
        assert (await http.get(f"{running.url}/else")).status_code == 404
        assert (await http.post(f"{running.url}/else")).status_code == 404


async def test_tickets_outlive_the_tracker(tmp_path: Path) -> None:
    numbers: list[int] = []
    for _ in range(2):
        async with tracker.running(tmp_path / "tickets.db") as running:
            numbers.append(await opened(running.url, "b"))
    assert numbers == [1, 2]


async def test_nothing_more_is_lost_when_it_has_ended(tmp_path: Path) -> None:
    async with tracker.running(tmp_path / "tickets.db", lose=1) as running:
        pass
    assert await running.lost() is None


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
