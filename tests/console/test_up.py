"""``up``, ``run`` and ``worker`` as processes: how they begin, and that nothing is left when they end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.console.installation import Installation, until

HANGS: Final = """
import time
from outlive.actors import App, RetryPolicy, Task

app = App("hangs")

@app.tool(read_only=True, timeout=0.1, retries=RetryPolicy(max_attempts=1))
def hang() -> int:
    time.sleep(600)
    return 1

@app.task
async def wait(task: Task) -> int:
    return await task.call(hang)

@app.task
async def look(task: Task) -> int:
    return 1
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    """A folder with an app; no process may be left there."""
    here = Installation(tmp_path)
    yield here
    try:
        until(lambda: here.left == [], 20)
    finally:
        here.close()


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def end(process: "subprocess.Popen[str]", *numbers: signal.Signals, code: int = 0) -> None:
    """Send signals, and wait for the end."""
    for number in numbers:
        process.send_signal(number)
        time.sleep(0.1)  # as a person's: two in one moment are one to the kernel
    process.communicate(timeout=40)
    assert process.returncode == code


def test_a_second_ctrl_c_does_not_wait_for_steps_in_flight(here: Installation) -> None:
    up = here.start("up", "todo:app", "--json")
    assert line_of(up)
    refused = here.run("chaos", "kill", "worker", code=1)
    assert refused.stderr == ("Error: no worker here was started with --chaos. Start some: outlive up APP --chaos\n")
    here.run("submit", "count", "steps:=2", "seconds:=600", "--task-id", "endless")
    until(lambda: here.ask("show", "endless")["task"]["owner"] is not None)
    began = time.monotonic()
    end(up, signal.SIGINT, signal.SIGINT)
    assert time.monotonic() - began < 15
    again = here.start("up", "todo:app", "--json")  # the same folder, the same data
    assert line_of(again)
    assert here.ask("show", "endless")["task"]["status"] == "running"
    end(again, signal.SIGTERM, signal.SIGINT)


def test_ctrl_c_while_servers_start_leaves_nothing(here: Installation) -> None:
    for pause in (0.3, 0.9, 1.6):
        up = here.start("up", "todo:app")
        time.sleep(pause)
        up.send_signal(signal.SIGINT)
        up.communicate(timeout=40)
        assert up.returncode in {0, 130, -signal.SIGINT}
        until(lambda: here.left == [], 20)


def test_everything_dies_with_a_killed_up(here: Installation) -> None:
    up = here.start("up", "todo:app", "--workers", "2", "--json")
    workers = json.loads(line_of(up))["workers"]
    assert len(psutil.Process(up.pid).children()) >= 4
    up.kill()
    up.communicate(timeout=40)
    until(lambda: not any(psutil.pid_exists(pid) for pid in workers), 5)


def test_an_app_that_cannot_start_ends_up(here: Installation) -> None:
    (here.folder / "broken.py").write_text(
        "from outlive.actors import App\napp = App('a')\n@app.tool(read_only=True)\ndef f(x) -> int: ...\n"
    )
    failed = here.run("up", "broken:app", code=1)
    assert "Error: broken.py:3: tool 'f'" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert failed.stderr.endswith("Error: the worker ended with code 1 before it served\n")


def test_changed_sources_start_workers_anew(here: Installation) -> None:
    app = here.folder / "todo.py"
    up = here.start("up", "todo:app", "--reload", "--json")
    assert line_of(up)
    assert here.run("submit", "ask_version", "--watch").stdout == "1\n"
    working = app.read_text()
    app.write_text("this is no Python")
    here.wait_for_log("before it served; waiting for a change")
    app.write_text(working.replace("VERSION = 1", "VERSION = 2"))
    until(lambda: here.run("submit", "ask_version", "--watch").stdout == "2\n")
    assert "todo.py changed: workers start anew" in here.log
    end(up, signal.SIGTERM)


def test_a_worker_whose_threads_hang_is_started_again(here: Installation) -> None:
    (here.folder / "hangs.py").write_text(HANGS)
    here.environment |= {"OUTLIVE_ABANDONED_THREADS": "1", "OUTLIVE_GRACE": "0.5", "OUTLIVE_HEARTBEAT": "0.2"}
    up = here.start("up", "hangs:app", "--json")
    (first,) = json.loads(line_of(up))["workers"]
    for _ in range(2):
        here.run("submit", "wait", "--watch", code=1)
    here.wait_for_log(f"worker {first} ended with code 1; started again")
    assert "2 threads of synchronous tools outlived their timeouts, more than 1" in here.log
    assert here.run("submit", "look", "--watch").stdout == "1\n"
    end(up, signal.SIGTERM)


def test_a_worker_uses_the_servers_that_run_and_ends_with_them(here: Installation) -> None:
    up = here.start("up", "todo:app", "--workers", "0", "--json")
    assert json.loads(line_of(up))["workers"] == []
    worker = here.start("worker", "todo:app")
    here.wait_for_log('"serving"')
    assert here.run("submit", "count", "steps:=2", "--watch").stdout == "3\n"
    end(worker, signal.SIGTERM)
    assert '"drained"' in here.log
    other = here.start("worker", "todo:app")
    until(lambda: here.log.count('"serving"') == 2)
    end(up, signal.SIGINT)
    other.communicate(timeout=40)
    assert other.returncode == 1
    assert "have ended: start them again with: outlive up" in here.log


def test_run_does_one_task_and_leaves_nothing(here: Installation) -> None:
    done = here.run("run", "todo:app", "count", "steps:=3")
    assert done.stdout == "6\n"
    assert here.left == []
    lines = here.stream("run", "todo:app", "boom", code=1)
    assert lines[-1]["failure"]["message"] == "a bug of the task"


def test_an_interrupted_run_goes_on_where_it_was(here: Installation) -> None:
    words = ("run", "todo:app", "count", "steps:=30", "seconds:=0.1", "--task-id", "t", "--json")
    first = here.start(*words)
    assert first.stdout is not None
    assert any('"note"' in line for line in first.stdout)
    end(first, signal.SIGINT, code=130)
    assert "it is kept. To go on: outlive run todo:app count --task-id t --input" in here.log
    lines = here.stream(*words[:-1])
    assert lines[-1]["result"] == 465
    steps = [line["step_id"] for line in lines if line["type"] == "step" and line["status"] == "completed"]
    assert len(steps) == len(set(steps)) == 30


def test_a_bar_is_drawn_in_a_terminal_and_the_result_alone_is_on_stdout(here: Installation) -> None:
    terminal, slave = os.openpty()
    command = [sys.executable, "-m", "outlive", "run", "todo:app", "count", "steps:=20", "seconds:=0.05"]
    with subprocess.Popen(
        command, cwd=here.folder, env=here.environment, stdout=subprocess.PIPE, stderr=slave
    ) as process:
        os.close(slave)
        drawn = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(terminal, 4096):
                drawn += more
        out, _ = process.communicate(timeout=60)
    os.close(terminal)
    assert (process.returncode, out) == (0, b"210\n"), drawn
    assert b"looked 20 of 20 times" in drawn
    assert b"20/20" in drawn
