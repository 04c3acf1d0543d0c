"""``edit-plan``: see the plan, change it in a file or by items, be told when it has another version by now."""

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from outlive.actors import App, Task, planning
from outlive.actors.kind import declare
from outlive.actors.task import flow_of
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.protocol.plan import Item
from outlive.protocol.task import Status
from tests.console.keyboard import typed

app = App("editing")


async def agent(task: Task) -> list[str]:
    """Ask before each item of the plan as it stands."""
    flow, done = flow_of(task), list[str]()
    while True:
        plan = planning.take_edit(flow) or flow.plan or planning.adopt(flow, [Item("a", "one"), Item("b", "two")])
        left = [item.id for item in (plan.items if plan else ()) if item.id not in done]
        if not left:
            return done
        planning.attribute(flow, left[0])
        await task.ask(f"{left[0]}?")
        done.append(left[0])


app.task.add(dataclasses.replace(declare(agent), plans=True))


async def asked(handle: Handle[object], question: str) -> str:
    """Wait for a question; gives its step."""
    async with asyncio.timeout(20):
        while True:
            record = await handle.record()
            if record.status is Status.PAUSED and [one.message for one in record.reasons] == [question]:
                return record.reasons[0].step_id or ""
            await asyncio.sleep(0.02)


async def test_a_plan_is_shown_changed_and_given_back(client: Client, tmp_path: Path) -> None:
    handle = await client.submit("agent")
    step = await asked(handle, "a?")
    shown = await typed("edit-plan", handle.task_id, "--show")
    sheet = json.loads(shown.stdout)
    assert sheet == {"version": 1, "items": [{"id": "a", "text": "one"}, {"id": "b", "text": "two"}]}
    sheet["items"][1] = {"id": "c", "text": "three", "after": ["a"]}
    (tmp_path / "plan.json").write_text(json.dumps(sheet))
    given = await typed("edit-plan", handle.task_id, f"@{tmp_path}/plan.json", "--reason", "b is done", "--by", "bob")
    assert given.stdout == f"The plan of task {handle.task_id} is version 2 now by bob; its next decision goes by it.\n"
    again = await typed("edit-plan", handle.task_id, "--version", "1", "--item", "z=all of it")
    assert (again.exit_code, "is version 2, not version 1. Look again" in again.stderr) == (1, True)
    shown = await typed("show", handle.task_id)
    assert [line.split()[:3] for line in shown.stdout.splitlines() if line.split()[-1:] in (["one"], ["two"], ["three"])] == [
        ["1", "a", "doing"], ["2", "c", "waiting"], ["b", "dropped", "two"],
    ]  # fmt: skip
    await client.answer(handle.task_id, step, "yes")
    await client.answer(handle.task_id, await asked(handle, "c?"), "yes")
    assert await handle.result(20) == ["a", "c"]
    late = await typed("edit-plan", handle.task_id, "--version", "2", "--item", "z=all of it")
    assert (late.exit_code, "succeeded at" in late.stderr) == (1, True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give the new plan: @FILE, or --item ID=TEXT for each item; see it with --show"),
        (("--item", "a=x"), "--item needs --version N: of the plan that you have changed; see it with --show"),
        (("--version", "1", "--item", "a"), "'a' is not ID=TEXT"),
        (("--version", "1", "--item", "a=x", "--item", "a=y"), "item 'a' comes twice: give each its own id"),
        (("{}",), 'the plan is not {"version": N, "items": [{"id", "text", "after"}]}'),
        (("@nowhere.json",), "the plan @nowhere.json: "),
    ],
)  # fmt: skip
async def test_what_is_no_plan_is_told_before_anything_is_sent(words: tuple[str, ...], said: str) -> None:
    result = await typed("edit-plan", "t", *words)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
