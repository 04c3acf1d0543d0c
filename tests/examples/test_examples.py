"""The examples, as a person runs them: from a terminal, with a script for a model or one behind an OpenAI-compatible URL."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.console.installation import Installation, until
from tests.examples.endpoint import Endpoint

UTCNOW = '''\
from datetime import datetime


def now() -> datetime:
    """Say when."""
    return datetime.utcnow()
'''
OTHER_FORM = "import datetime\n\nSTARTED = datetime.datetime.utcnow()\n"


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    """A folder with sources; no process may be left there."""
    here = Installation(tmp_path)
    (tmp_path / "code").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "code" / name).write_text(UTCNOW)
    (tmp_path / "code" / "c.py").write_text(OTHER_FORM)
    here.environment["OUTLIVE_EXAMPLE_FOLDER"] = str(tmp_path / "code")
    yield here
    try:
        until(lambda: here.left == [], 20)
    finally:
        here.close()


def _served(here: Installation) -> "subprocess.Popen[str]":
    up = here.start("up", "outlive.actors.examples:app", "--json")
    assert up.stdout is not None
    here.up = up.stdout.readline()
    return up


def _end(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=40)


@contextlib.contextmanager
def _in_a_terminal(here: Installation, *words: str) -> Generator[tuple["subprocess.Popen[bytes]", bytearray]]:
    """Run a command whose stderr is a terminal; yield it with what is drawn there."""
    terminal, slave = os.openpty()
    drawn = bytearray()

    def look() -> None:
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(terminal, 4096):
                drawn.extend(more)

    process = subprocess.Popen(
        [sys.executable, "-m", "outlive", *words],
        cwd=here.folder, env=here.environment, stdout=subprocess.PIPE, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield process, drawn
    finally:
        process.kill()
        process.wait()
        reader.join(10)
        os.close(terminal)


def _question(here: Installation, task_id: str, about: str) -> dict[str, Any]:
    """Return what a task asks, when it asks about something."""
    found: list[dict[str, Any]] = []

    def asks() -> bool:
        task = here.ask("show", task_id)["task"]
        found[:] = [reason for reason in task.get("reasons", []) if about in reason["message"]]
        return task["status"] == "paused" and bool(found)

    until(asks)
    return found[0]


def test_the_analyst_reports_with_references_that_exist(here: Installation) -> None:
    done = here.run("example", "analyst", "code")

    result = json.loads(done.stdout)
    assert result["summary"] == "3 source files, 15 lines; the largest is a.py"
    report = (here.folder / "analysis.md").read_text()
    places = re.findall(r"`([\w./]+):(\d+)`", report)
    assert len(places) == result["references"] == 5
    for path, line in places:
        assert len((here.folder / "code" / path).read_text().splitlines()) >= int(line)
    assert "- now: `a.py:4`" in report
    assert "step 2 of 3: outline a.py" in done.stderr


@pytest.mark.slow
def test_the_reviewer_asks_a_person_and_the_answers_are_in_its_review(here: Installation) -> None:
    stopped = here.run("example", "contracts", "--task-id", "review", code=3)
    assert "Asks: hosting.txt, clause 2 (Fee)" in stopped.stderr
    assert "it is kept. To go on, in a terminal, where it waits for your answer: outlive example" in stopped.stderr

    del here.environment["OUTLIVE_EXAMPLE_FOLDER"]
    with _in_a_terminal(here, "example", "contracts", "--task-id", "review") as (process, drawn):
        until(lambda: b"outlive answer review" in drawn)
        assert _question(here, "review", "hosting.txt, clause 2")["choices"] == ["accept", "flag"]
        here.run("answer", "review", "flag")
        _question(here, "review", "licence.txt, clause 3")
        here.run("answer", "review", "accept")
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    review = json.loads(out)
    assert review["contracts"] == 3
    assert [(each["contract"], each["clause"], each.get("answer", "")) for each in review["findings"]] == [
        ("hosting.txt", 3, ""),
        ("licence.txt", 2, ""),
        ("licence.txt", 4, ""),
        ("hosting.txt", 2, "flag"),
    ]
    assert "it leaves open: Fees for additional storage" in (here.folder / "review.md").read_text()


def test_the_migration_edits_what_a_person_agrees_to(here: Installation) -> None:
    up = _served(here)
    here.run("submit", "migrator", "goal=Replace utcnow", "--task-id", "m")
    first = _question(here, "m", "a.py")
    assert "-    return datetime.utcnow()\n+    return datetime.now(UTC)" in first["message"]
    here.run("approve", "m", first["step_id"])
    second = _question(here, "m", "b.py")
    here.run("reject", "m", second["step_id"], "--reason", "b.py is frozen")

    (line,) = here.run("submit", "migrator", "goal=Replace utcnow", "--task-id", "m", "--watch").stdout.splitlines()
    result = json.loads(line)
    assert result["edited"] == ["a.py"]
    assert len(result["left"]) == 2
    assert "b.py is frozen" in str(result["left"])
    assert (here.folder / "code" / "b.py").read_text() == UTCNOW
    assert "from datetime import UTC, datetime" in (here.folder / "code" / "a.py").read_text()
    _end(up)


@pytest.mark.slow
def test_a_cancelled_migration_puts_its_files_back(here: Installation) -> None:
    up = _served(here)
    here.run("submit", "migrator", "goal=Replace utcnow", "--task-id", "m")
    edited = here.folder / "code" / "a.py"
    here.run("approve", "m", _question(here, "m", "a.py")["step_id"])
    _question(here, "m", "b.py")
    assert edited.read_text() != UTCNOW

    here.run("cancel", "m", "--compensate")

    until(lambda: here.ask("show", "m")["task"]["status"] == "cancelled")
    assert edited.read_text() == UTCNOW
    _end(up)


def test_a_worker_is_killed_while_a_real_model_thinks_and_nothing_is_asked_again(here: Installation) -> None:
    with Endpoint(hold=3) as model:
        here.environment |= {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "none"}
        process = here.start(
            "example", "analyst", "code", "--model", "openai-chat:gpt-test", "--task-id", "a", "--json"
        )
        model.held.wait(60)
        (worker,) = [each for each in psutil.Process(process.pid).children() if "worker" in each.cmdline()]
        worker.kill()
        model.go_on.set()
        out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, here.log

    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[-1]["result"]["references"] == 5
    assert (here.folder / "analysis.md").exists()
    assert any(line["type"] == "resumed" for line in lines)
    assert len(model.asked) == 6, "five decisions; only the one in flight was asked for again"
    assert model.asked[2] == model.asked[3], "with the same facts"
    assert len(set(model.asked)) == 5
