"""What the README's first screen shows is true: its example survives two kills, its commands do what it says."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from mailbox import Maildir
from pathlib import Path
from typing import Any, Final

import anyio
import nats
import pytest

from outlive.actors.console import codes
from outlive.actors.testing import Server
from outlive.protocol import codec
from outlive.protocol.commands import AnyCommand
from tests.chaos.harness import ROOT, assert_progress_gapless, fetch, until, wait_all_final

README: Final = (ROOT / "README.md").read_text("utf-8")
OUTLIVE: Final = (sys.executable, "-m", "outlive")
FILES: Final = 1500
MANY: Final = 15000
TASK: Final = "todo-1"


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def _example() -> str:
    (example,) = [block for block in _blocks("python") if block.startswith("# todo.py")]
    return str(example)


@pytest.fixture
def project() -> Iterator[Path]:
    """A folder with the example as it stands in the README, and a code base with one TODO in every second file."""
    with tempfile.TemporaryDirectory(prefix="outlive-readme-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # Postgres may run as another user
        (folder / "todo.py").write_text(_example())
        _write_code(folder, FILES)
        yield folder


def _write_code(folder: Path, files: int) -> None:
    (folder / "code").mkdir(exist_ok=True)
    for n in range(files):
        (folder / "code" / f"m{n:04}.py").write_text("x = 1\n# TODO: more\n" if n % 2 else "x = 1\n")


def _todos(files: int) -> int:
    """How many there are: the example speaks of them too."""
    return files // 2 + sum("TODO" in line for line in _example().splitlines())


class Commands:
    """Commands typed in the project's folder, with its servers."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")},
            **environment,
        }

    async def run(self, text: str) -> str:
        """Run a command as the README shows it; its stdout."""
        process = await self._open(text, {}, subprocess.PIPE)
        out, errors = await process.communicate()
        assert process.returncode == 0, f"{text}: {errors.decode()}"
        return out.decode()

    @asynccontextmanager
    async def running(self, text: str, **environment: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """Run a command beside the block; killed at its end if it still runs."""
        with (self.folder / "log").open("ab") as log:
            process = await self._open(text, environment, log.fileno())
        try:
            yield process
        except BaseException:
            print(f"--- log of the commands\n{self.log[-20_000:]}")
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _open(self, text: str, environment: dict[str, str], errors: int) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *OUTLIVE, *shlex.split(text)[1:], cwd=self.folder, env={**self._environment, **environment},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text() if (self.folder / "log").exists() else ""


def _mails(project: Path) -> list[Any]:
    return list(Maildir(str(project / "outbox"), create=False)) if (project / "outbox").exists() else []


async def test_the_example_is_killed_twice_and_mails_once(shared: Server, project: Path) -> None:
    """The second kill is the worst one: after the yes, the mail is in the outbox, and nothing of it is recorded."""
    commands = Commands(project, dict(shared.environment))
    worker = "outlive worker todo:app"
    async with commands.running(worker) as first:
        await until(shared, "select count(*) > 0 from outlive_store.kind where name = 'collect'")
        await commands.run(f"outlive submit collect folder=. to=you@example.com --task-id {TASK}")
        await until(shared, "select steps > 100 from outlive.task where task_id = $1", TASK)
        first.kill()
        await first.wait()
        assert await until(shared, "select status = 'running' from outlive.task"), "it was quicker than the kill"
    async with commands.running(worker, OUTLIVE_FAILPOINTS="effect.after=kill@1") as second:
        await until(shared, "select status = 'paused' from outlive.task")
        assert _mails(project) == []
        await commands.run(f"outlive approve {TASK}")
        with anyio.fail_after(60):
            assert await second.wait() == -signal.SIGKILL, commands.log
    assert len(_mails(project)) == 1
    async with commands.running(worker):
        await wait_all_final(shared, [TASK])
        shown = json.loads(await commands.run(f"outlive show {TASK} --json"))
        await assert_progress_gapless(shared, [TASK])
    assert shown["task"]["result"] == _todos(FILES)
    (mail,) = _mails(project)
    (operation,) = shown["operations"]
    assert (operation["status"], operation["attempts"]) == ("succeeded", 1)  # found, not sent again
    assert mail["To"] == "you@example.com"
    assert len(mail.get_payload(decode=True).decode().splitlines()) == shown["task"]["result"]
    await _assert_no_step_twice(shared)


async def _assert_no_step_twice(server: Server) -> None:
    query = "select count(*), count(distinct step_id) from outlive.step where task_id = $1 and status = 'completed'"
    [(recorded, different)] = [tuple(row) for row in await fetch(server, query, TASK)]
    assert recorded == different == FILES + 3  # list_files, each file and todo.py, send_mail


def _typed() -> list[str]:
    """The commands of the first screen, as they are typed there."""
    console = [
        line.removeprefix("$ ") for block in _blocks("console") for line in block.splitlines() if line[:1] == "$"
    ]
    return [*console, *re.findall(r"`(outlive chaos [^`]+)`", README)]


@pytest.mark.slow
async def test_the_first_screen_can_be_typed(project: Path) -> None:
    """Servers, two workers, a submit that is watched, and a kill from another terminal; all as written."""
    up, submit, approve, kill = _typed()
    _write_code(project, MANY)  # long enough for a command to start meanwhile
    commands = Commands(project, {"OUTLIVE_STATE_DIR": str(project / "state")})
    async with commands.running(up) as serving:
        await _logged(commands, "2 workers for todo:app; Ctrl-C stops everything")
        async with commands.running(submit) as watching:
            await _logged(commands, f"read 50 of {MANY + 1} files")
            assert re.fullmatch(r"worker \d+ was killed \(SIGKILL\)\n", await commands.run(kill))
            assert watching.stdout is not None
            with anyio.fail_after(60):
                await watching.stdout.read()
                assert await watching.wait() == codes.PERSON  # nobody looks at a screen, who could act elsewhere
        assert _mails(project) == []
        (task,) = re.findall(r"^task ([-0-9a-f]{36})$", commands.log, re.MULTILINE)
        assert f"to go on: outlive approve {task} " in commands.log
        await commands.run(re.sub(r"[-0-9a-f]{36}", task, approve))
        result = await commands.run(f"outlive watch {task}")
        serving.send_signal(signal.SIGINT)
        with anyio.fail_after(30):
            assert await serving.wait() == 0
    assert int(result) == _todos(MANY)
    assert re.search(r"Resumed by worker \d+: \d+ steps kept, \d run again, next: \w+\.", commands.log)
    assert len(_mails(project)) == 1


async def _logged(commands: Commands, text: str) -> None:
    with anyio.fail_after(60):
        while text not in commands.log:  # noqa: ASYNC110  # another process writes it
            await asyncio.sleep(0.02)


async def test_the_five_lines_work_without_any_of_our_code(shared: Server, project: Path) -> None:
    """What the nats command line does with them: subscribe, publish, ask."""
    (lines,) = [block for block in _blocks("sh") if block.startswith("nats sub")]
    prefix = shared.settings.prefix
    connection = await nats.connect(shared.nats_url, token=shared.nats_token)
    heard: list[dict[str, Any]] = []

    async def hear(message: Any) -> None:
        heard.append({"subject": message.subject, **json.loads(message.data)})

    replies: list[dict[str, Any]] = []
    try:
        async with Commands(project, dict(shared.environment)).running("outlive worker todo:app"):
            await until(shared, "select count(*) > 0 from outlive_store.kind where name = 'collect'")
            for line in lines.splitlines():
                _, verb, subject, *payload = shlex.split(line.removesuffix("&"))
                subject = subject.replace("outlive.", f"{prefix}.", 1)
                if verb == "sub":
                    await connection.subscribe(subject, cb=hear)
                    await connection.flush()
                    continue
                reply = await connection.request(subject, payload[0].encode(), timeout=10)
                replies.append(json.loads(reply.data))
                if subject.endswith(".submit"):
                    await until(shared, "select count(*) = 1 from outlive.task")
            await until(shared, "select count(*) = 1 from outlive.task where ended_at is not null")
            with anyio.fail_after(10):
                while not any(event.get("final") for event in heard):  # noqa: ASYNC110  # told by a subscription
                    await asyncio.sleep(0.02)
    finally:
        await connection.close()
    assert [set(replies[0]), replies[1]["task_id"], set(replies[2])] == [{"stream", "seq"}, TASK, {"stream", "seq"}]
    answers = {each["command_id"]: each["ok"] for each in heard if "ok" in each}
    assert answers["c-1"] is True
    assert "c-2" in answers
    events = [each["seq"] for each in heard if "seq" in each]
    assert events == list(range(1, len(events) + 1))


def test_the_five_lines_are_those_of_the_contract() -> None:
    """The same subjects and shapes as in protocol/README.md, whose examples are decoded by the real types."""
    contract = (ROOT / "protocol/README.md").read_text("utf-8")
    (lines,) = [block for block in _blocks("sh") if block.startswith("nats sub")]
    assert len(lines.splitlines()) == 5
    for line in lines.splitlines():
        words = shlex.split(line.removesuffix("&"))
        assert f"{words[1]} {words[2]}" in contract.replace("'", ""), line
        if ".cmd." in words[2]:
            assert codec.decode(words[3].encode(), AnyCommand).__struct_config__.tag == words[2].rpartition(".")[2]
