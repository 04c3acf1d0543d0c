"""Stored values are JSON: any text comes back as it was, errors are read without their classes, and nothing stored is ever run."""

import asyncio
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outlive.actors import App, StepFailed, Task
from outlive.actors.testing import Server
from outlive.protocol.errors import TaskFailed
from outlive.protocol.task import ReasonCode
from tests.actors.scene import dying, events, row_soon, rows, serving, status_soon

app = App("plain")
go = app.signal("go", str)
NUL = "a\0b"


class HTTPError(Exception):
    """It cannot be made again from its arguments."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.detail = detail


@app.tool(read_only=True)
def echo(text: str) -> str:
    return text


@app.tool(read_only=True)
def broken(how: str) -> str:
    if how == "socket":
        with socket.socket() as held:
            raise OSError("the line is held by", held)
    if how == "nul":
        raise ValueError(NUL)
    raise HTTPError(500, "x")


@app.task
async def repeat(task: Task, text: str) -> list[str]:
    await task.progress(text)
    seen = [await task.call(echo, text)]
    try:
        await task.call(broken, "nul")
    except StepFailed as error:
        seen.append(error.failure.message)
    return seen


@app.task
async def breaks(task: Task, how: str) -> str:
    return await task.call(broken, how)


@app.task
async def rests(task: Task) -> str:
    found = await task.call(echo.with_options(durable="before_next"), "x")
    return found + await task.wait_for(go)


async def test_nul_in_a_text_is_kept_everywhere_and_the_status_is_right(shared: Server) -> None:
    async with serving(app, shared) as client:
        assert await (await client.submit(repeat, NUL)).result(timeout=20) == [NUL, NUL]
        (task,) = await rows(shared, "select task_id, status from task")
        assert task["status"] == "succeeded"
        assert NUL in [event["message"] for event in await events(shared, task["task_id"])]
        assert (await client.get(task["task_id"])).input == {"text": NUL}


@pytest.mark.parametrize(
    ("how", "type_", "message"),
    [("own", "HTTPError", "500: x"), ("socket", "OSError", "the line is held by"), ("nul", "ValueError", NUL)],
)
async def test_an_error_is_read_by_a_program_that_lacks_its_class(
    shared: Server, how: str, type_: str, message: str
) -> None:
    async with serving(app, shared) as client:
        await client.submit(breaks.with_options(task_id="b"), how)
        with pytest.raises(TaskFailed):
            await client.result("b", str, timeout=20)
        code = (
            "import asyncio\nfrom outlive.infra.client import Client\n"
            "async def main():\n    async with Client() as client:\n        failure = (await client.get('b')).failure\n"
            "        print(failure.type, failure.error_class, repr(failure.message))\nasyncio.run(main())\n"
        )
        read = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=subprocess.PIPE, env={**os.environ, **shared.environment}
        )
        out, _ = await read.communicate()
        assert out.decode().startswith(f"{type_} bug ") and repr(message)[1:-1] in out.decode()


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


async def test_pickles_in_the_store_are_refused_and_never_run(shared: Server, tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    async with dying(app, shared) as client:
        await client.submit(rests.with_options(task_id="r"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
    await rows(shared, "update fact set body = $1 where type = 'step' and name = 'echo'", pickle.dumps(Trap(trap)))
    async with serving(app, shared) as client:
        await status_soon(shared, "r", "paused")
        (reason,) = (await client.get("r")).reasons
        assert reason.reason is ReasonCode.VERSION_MISMATCH and "Nothing was run" in reason.message
    assert not trap.exists()
