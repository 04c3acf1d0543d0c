"""A whole installation as a user has it: `outlive up` in a process of its own, and commands beside it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import nats
import psutil

APP: Final = """
import asyncio
from pathlib import Path
from outlive.actors import App, Task

app = App("todo")
go = app.signal("go", str)
VERSION = 1

@app.tool(read_only=True)
async def look(n: int, seconds: float) -> int:
    await asyncio.sleep(seconds)
    return n

@app.task
async def count(task: Task, steps: int, seconds: float = 0.0) -> int:
    total = 0
    for n in range(1, steps + 1):
        total += await task.call(look, n, seconds)
        await task.progress(f"looked {n} of {steps} times", done=n, total=steps)
    return total

@app.task
async def waiter(task: Task) -> str:
    return await task.wait_for(go)

@app.task
async def boom(task: Task) -> int:
    raise RuntimeError("a bug of the task")

@app.tool(read_only=True)
def version() -> int:
    return VERSION

@app.task
async def ask_version(task: Task) -> int:
    return await task.call(version)
"""


class Installation:
    """A folder with an app and a state folder, and the commands that are typed there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        self.up = ""
        """What ``up --json`` wrote."""
        self.folder.chmod(0o755)  # Postgres may run as another user
        (folder / "todo.py").write_text(APP)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")},
            "OUTLIVE_STATE_DIR": str(folder / "state"),
        }

    def start(self, *words: str) -> "subprocess.Popen[str]":
        """Start a command; its stdout is a pipe, its stderr goes to `log`."""
        with (self.folder / "stderr").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "outlive", *words],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kill what a test has left running."""
        for process in self._started:
            process.kill()
            process.communicate()

    def run(self, *words: str, code: int = 0, given: str | None = None) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, and check its exit code."""
        done = subprocess.run(
            [sys.executable, "-m", "outlive", *words],
            cwd=self.folder, env=self.environment, input=given or "", capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words} gave {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log}"
        return done

    def ask(self, *words: str, code: int = 0) -> Any:
        """Run a command with --json, which must write exactly one object."""
        (line,) = self.run(*words, "--json", code=code).stdout.splitlines()
        return json.loads(line)

    def stream(self, *words: str, code: int = 0) -> list[dict[str, Any]]:
        """Run a command with --json that writes an object per line."""
        return [json.loads(line) for line in self.run(*words, "--json", code=code).stdout.splitlines()]

    def publish(self, subject: str, body: bytes) -> None:
        """Publish a message to NATS."""
        asyncio.run(self._publish(subject, body))

    async def _publish(self, subject: str, body: bytes) -> None:
        client = await nats.connect(json.loads(self.up)["nats_url"])
        await client.publish(subject, body)
        await client.close()

    @property
    def log(self) -> str:
        """What was written to stderr by started commands."""
        return (self.folder / "stderr").read_text() if (self.folder / "stderr").exists() else ""

    def wait_for_log(self, text: str) -> None:
        """Return when a started command has written a text to stderr."""
        until(lambda: text in self.log)

    @property
    def left(self) -> list[str]:
        """Processes that belong to this installation."""
        processes = psutil.process_iter(["pid", "cmdline", "cwd"])
        return [
            f"{process.info['pid']} {process.info['cmdline']}"
            for process in processes
            if str(self.folder) in f"{process.info['cmdline']} {process.info['cwd']}"
        ]


def until(condition: Callable[[], bool], within: float = 30.0) -> None:
    """Return when something holds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)
