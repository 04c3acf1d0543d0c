"""The demo: its screens, and the whole of it with a real kill."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest
from rich.console import Console

from outlive.actors.audit.screen import Crash, End, JsonScreen, PeopleScreen, Row, Screen
from outlive.protocol.events import NoteEvent

CRASH = Crash(killed=4711, successor=4712, at=31, total=94, after=0.0601, kept=31, repeated=1, resent=0)
ROWS = [
    Row(what="tickets", said=7, counted=7, where="the tracker's database"),
    Row(what="steps repeated", said=1, counted=None, where="progress events"),
]
END = End(ok=True, seconds=12.34, rows=ROWS, reports=["/somewhere/REPORT.md"])
DEMO = "import asyncio, sys; from outlive.actors.audit.demo import demo; sys.exit(asyncio.run(demo(as_json=True)))"


def play(screen: Screen) -> None:
    """Show an audit of 40 packages."""
    screen.doing("starting Postgres")
    for n in range(1, 41):
        at = datetime(2030, 1, 1, tzinfo=UTC)
        message = f"read {n} of 40 packages"
        event = NoteEvent(seq=n, task_id="t", tenant="default", at=at, message=message, step_id="1", done=n, total=40)
        screen.event(event)
    screen.crash(CRASH)
    screen.end(END)


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    with PeopleScreen(Console(file=out, width=100)) as screen:
        play(screen)
    text = out.getvalue()
    assert "\x1b" not in text
    assert text.startswith("starting Postgres\nread 4 of 40 packages\nread 8 of 40 packages\n")
    assert (
        "worker 4711 killed at 31 of 94; worker 4712 took over after 0.06 s; 31 packages kept, 1 read again\n" in text
    )
    assert "counted outside" in text
    assert "/somewhere/REPORT.md\nthe counts agree\n" in text
    assert len(text.splitlines()) < 30


def test_in_a_terminal_a_bar_moves() -> None:
    out = io.StringIO()
    with PeopleScreen(Console(file=out, width=100, force_terminal=True)) as screen:
        play(screen)
    assert "read 40 of 40 packages" in out.getvalue()


def test_json_is_one_object_per_line() -> None:
    out = io.StringIO()
    play(JsonScreen(out))
    lines = [msgspec.json.decode(line) for line in out.getvalue().splitlines()]
    assert [line["type"] for line in lines] == ["doing", *["note"] * 40, "crash", "end"]
    assert lines[-1]["ok"] is True


def test_a_ticket_that_was_sent_again_is_told() -> None:
    crash = msgspec.structs.replace(CRASH, repeated=0, resent=1)
    assert str(crash).endswith("31 packages kept, 0 read again, 1 ticket sent again with the same key")


class Running(NamedTuple):
    """A demo that runs, with its files under a folder."""

    folder: Path
    process: "subprocess.Popen[str]"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A demo, of which no process may be left afterwards."""
    tmp_path.chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-c", DEMO],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with process:
        yield Running(tmp_path, process)
        process.kill()
    left = [other for other in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(other.info["cmdline"])]
    assert psutil.wait_procs(left, timeout=30)[1] == []


def test_the_demo_kills_a_worker_and_loses_nothing(running: Running) -> None:
    out, errors = running.process.communicate(timeout=100)
    assert running.process.returncode == 0, errors
    lines: list[dict[str, Any]] = [msgspec.json.decode(line) for line in out.splitlines()]
    (crash,) = [line for line in lines if line["type"] == "crash"]
    end = lines[-1]
    assert end["ok"] is True
    assert end["seconds"] < 60
    numbers = [line["seq"] for line in lines if "seq" in line]
    assert numbers == list(range(1, len(numbers) + 1))
    assert crash["total"] // 3 <= crash["at"] <= crash["total"]
    assert crash["killed"] != crash["successor"]
    assert crash["kept"] >= crash["at"]
    said = {row["what"]: row["said"] for row in end["rows"]}
    assert said["findings"] == said["tickets"]
    assert [Path(path).is_file() for path in end["reports"]] == [True] * 3
    assert not list(running.folder.glob("*/servers"))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ending_the_demo_leaves_no_process(running: Running, how: signal.Signals) -> None:
    process = running.process
    assert process.stdout is not None
    assert any('"note"' in line for line in process.stdout)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 5  # two workers, the tracker, two servers
    process.send_signal(how)
    process.wait(timeout=60)
    assert psutil.wait_procs(children, timeout=30)[1] == []
