"""Nothing half-valid is ever stored: an id that breaks the rule is refused at the boundary, with the rule."""

import json
from typing import Any

import nats
import pytest

from outlive.actors import App, Client, Task
from outlive.actors.testing import Server
from outlive.infra.bus import Bus
from outlive.protocol.commands import Cancel
from outlive.protocol.ids import InvalidId
from tests.actors.scene import row_soon, rows, serving

app = App("ids")
WRONG: list[Any] = [
    "",
    "   ",
    "a b",
    "a.b",
    "*",
    ">",
    "x" * 300,
    "x" * 65,
    "_a",
    "t1:x",
    "a/b",
    "\u00e9",
    "e\u0301",
    "a\n",
    1,
    b"a",
]
RULE = "1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _"


@app.task
async def echo(task: Task, name: str) -> str:
    return f"{task.tenant}/{task.task_id}/{name}"


def test_a_client_refuses_it_before_anything_is_sent() -> None:
    client = Client()
    look = App("tools").tool(read_only=True)(nothing)
    for wrong in WRONG:
        for refuses in (
            lambda: echo.with_options(task_id=wrong),  # noqa: B023  # called at once
            lambda: echo.with_options(command_id=wrong),  # noqa: B023
            lambda: client.handle(wrong),  # noqa: B023
            lambda: look.with_options(step_id=wrong),  # noqa: B023
        ):
            with pytest.raises(InvalidId, match=RULE):
                refuses()


def nothing() -> None:
    """Do nothing."""


async def test_a_message_past_the_client_becomes_a_dead_letter_or_is_answered(shared: Server) -> None:
    async with serving(app, shared) as client, Bus.of(shared.settings, name="raw") as bus:
        with pytest.raises(InvalidId, match=RULE):
            await client.command("a b", Cancel())
        for number, wrong in enumerate(["", "   ", "a b", "a.b", "*", ">", "x" * 300, 1]):
            body = {"type": "submit", "command_id": wrong, "kind": "echo", "input": {"name": "x"}}
            await bus.publish_tracked(
                shared.subjects.command("default", f"t{number}", "submit"), json.dumps(body).encode()
            )
        raw: Any = await nats.connect(shared.nats_url)
        for task_id in ("x" * 300, "_a", "t1:x", "\u00e9"):
            body = {"type": "submit", "command_id": f"c-{len(task_id)}", "kind": "echo", "input": {"name": "x"}}
            await raw.publish(f"{shared.settings.prefix}.default.cmd.{task_id}.submit", json.dumps(body).encode())
        await raw.close()
        letters = await row_soon(shared, "select count(*) from dead_letter having count(*) = 12")
        assert letters[0] == 12
        assert all(RULE in row["reason"] for row in await rows(shared, "select reason from dead_letter"))
        assert await rows(shared, "select 1 from task") == []
        assert await rows(shared, "select 1 from inbox") == []


async def test_ids_that_differ_are_different_tasks_and_tenants_share_none(shared: Server) -> None:
    names = ["1", "01", "A", "a", "x" * 64, "-", "0"]
    async with serving(app, shared) as client:
        handles = [await client.submit(echo.with_options(task_id=name), name) for name in names]
        assert [await handle.result(10) for handle in handles] == [f"default/{name}/{name}" for name in names]
        async with Client(shared.with_settings(tenant="t2").settings) as second:
            assert await (await second.submit(echo.with_options(task_id="a"), "other")).result(10) == "t2/a/other"
        assert (await client.get("a")).input == {"name": "a"}
    assert len(await rows(shared, "select 1 from task")) == len(names) + 1
