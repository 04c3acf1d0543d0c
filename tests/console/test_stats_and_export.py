"""``stats`` and ``export`` against a worker: what they say is what happened."""

import asyncio
import json
from collections import Counter
from typing import Any

from outlive.actors import App, InvalidArguments, Operation, RetryPolicy, StepFailed, Task, Unavailable
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.protocol.task import Status
from tests.console.keyboard import typed

app = App("counted")
LARGE = 300_000  # above a quarter of a page: read in slices


@app.tool(read_only=True, retries=RetryPolicy(max_attempts=3, base=0.01, cap=0.01))
def shaky(name: str) -> str:
    raise Unavailable("away")


@app.tool(read_only=True)
def picky(name: str) -> str:
    raise InvalidArguments("no such name")


@app.tool(requires_approval=True)
def send(op: Operation, text: str) -> str:
    return text


@app.task
async def order(task: Task, text: str) -> int:
    for tool in (shaky, picky):
        try:
            await task.call(tool, "x")
        except StepFailed:
            await task.progress("failed")
    return len(await task.call(send, text))


async def waits(handle: Handle[object]) -> None:
    async with asyncio.timeout(10):
        while await handle.status() is not Status.PAUSED:  # noqa: ASYNC110  # asks over the wire
            await asyncio.sleep(0.02)


async def test_stats_tell_an_unstable_service_from_bad_arguments(client: Client) -> None:
    handle = await client.submit(order, "hello")
    await waits(handle)
    shown = await typed("stats", "--kind", "order", "--since", "1h")
    assert shown.exit_code == 0, shown.output
    lines = {line.split()[0]: " ".join(line.split()) for line in shown.stdout.splitlines()}
    assert lines["shaky"].endswith("unavailable 3 (100%)")
    assert lines["shaky"].startswith("shaky 1 0 1 0 0 3 ")
    assert lines["picky"].endswith("invalid arguments 1 (100%)")
    assert lines["send"].startswith("send 1 0 0 0 1 0 ")  # waits for a yes: not tried yet
    assert "1 task created in that time" in shown.stderr
    page = json.loads((await typed("stats", "--json")).stdout)
    assert [tool["name"] for tool in page["tools"]] == ["picky", "send", "shaky"]
    assert (await typed("stats", "--since", "yesterday")).exit_code == 2


async def exported(handle: Handle[object]) -> tuple[list[dict[str, Any]], Counter[str]]:
    shown = await typed("export", handle.task_id)
    assert shown.exit_code == 0, shown.output
    pieces = [json.loads(line) for line in shown.stdout.splitlines()]
    assert all(len(piece) == 1 for piece in pieces)
    return pieces, Counter(next(iter(piece)) for piece in pieces)


async def test_an_export_has_all_that_is_stored(client: Client) -> None:
    handle = await client.submit(order, "x" * LARGE)
    await waits(handle)
    _, before = await exported(handle)
    assert (before["operation"], before["command"], before["audit"]) == (1, 1, 0)
    await client.approve(handle.task_id, str((await handle.record()).reasons[0].step_id))
    assert await handle.result(10) == LARGE
    pieces, count = await exported(handle)
    task = pieces[0]["task"]
    assert (task["status"], task["result"], len(task["input"]["text"])) == ("succeeded", LARGE, LARGE)
    events = [piece["event"]["seq"] for piece in pieces if "event" in piece]
    assert events == list(range(1, task["last_seq"] + 1))
    assert (count["operation"], count["command"], count["attempt"]) == (1, 2, 4)
    (operation,) = [piece["operation"] for piece in pieces if "operation" in piece]
    assert (operation["name"], operation["status"], operation["words"][0]["by"]) == ("send", "succeeded", "ann")
    submit, approve = [piece["command"] for piece in pieces if "command" in piece]
    assert (submit["verb"], submit["answer"]["code"], len(submit["body"]["input"]["text"])) == (
        "submit",
        "applied",
        LARGE,
    )
    assert (approve["verb"], approve["answer"]["code"], approve["pos"]) == ("approve", "applied", 1)
    steps = [piece["step"] for piece in pieces if "step" in piece]
    assert [step["result"] for step in steps if step["name"] == "send"] == ["x" * LARGE]
    assert [piece["audit"]["what"] for piece in pieces if "audit" in piece] == ["approve"]


async def test_no_such_task_is_told(client: Client) -> None:
    shown = await typed("export", "nothing")
    assert shown.exit_code == 1
    assert "there is no task 'nothing'" in shown.stderr
    assert client.tenant == "default"
