"""Not JSON, an unknown type, wrong types, too large, a tenant in the body, a verb unlike the type: told, and the queue moves on."""

import json
from typing import Any

import pytest

from outlive.actors import App, Task
from outlive.actors.testing import Server
from outlive.infra.bus import Bus
from tests.actors.scene import events, row_soon, rows, serving

app = App("queue")


@app.task
async def echo(task: Task, name: str) -> str:
    return name


SUBMIT: dict[str, Any] = {"type": "submit", "kind": "echo", "input": {"name": "x"}}
DEAD: dict[str, bytes] = {
    "not-json": b"{not json",
    "not-utf8": b'{"type": "submit", "kind": "\xff"}',
    "empty": b"",
    "a-list": b"[1, 2]",
    "nul-in-a-word": json.dumps({**SUBMIT, "labels": {"a": "b\0"}}).encode(),
    "deep": b'{"type": "submit", "kind": "echo", "input": ' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}",
}
INVALID: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown-verb": ("explode", {"type": "explode"}, "there is no command 'explode'; there are: approve, cancel, edit_plan, pause, reject,"),
    "other-verb": ("pause", {"type": "resume"}, "the subject says 'pause' and the body's `type` 'resume': make them equal"),
    "no-type": ("pause", {}, "the body's `type` None"),
    "wrong-kind": ("submit", {**SUBMIT, "kind": 7}, "Expected `str`, got `int` - at `$.kind`"),
    "wrong-input": ("submit", {**SUBMIT, "input": [1]}, "Expected `object`, got `array` - at `$.input`"),
    "wrong-priority": ("submit", {**SUBMIT, "priority": "high"}, "at `$.priority`"),
    "no-name": ("signal", {"type": "signal", "value": 1}, "Object missing required field `name`"),
    "too-large": ("submit", {**SUBMIT, "input": {"name": "x" * 950_000}}, "are too many, 921600 are allowed: store it elsewhere"),
    "no-kind": ("submit", {**SUBMIT, "kind": "ecko"}, "Did you mean 'echo'?"),
    "tenant": ("submit", {**SUBMIT, "tenant": "t2"}, "the tenant is the one in the subject: leave `tenant` out of the body"),
    "task": ("submit", {**SUBMIT, "task_id": "another"}, "the task is the one in the subject, task"),
}  # fmt: skip
CODES = {"no-kind": "unknown_kind", "tenant": "not_allowed", "task": "not_allowed"}


async def test_each_is_told_and_what_comes_behind_it_runs(shared: Server) -> None:
    async with serving(app, shared) as client, Bus.of(shared.settings, name="raw") as bus:

        async def publish(task_id: str, verb: str, body: bytes) -> None:
            subject = shared.subjects.command("default", task_id, verb)
            await bus.publish_tracked(subject, body, {"Nats-Msg-Id": f"id-{task_id}"})

        for name, raw in DEAD.items():
            await publish(name, "submit", raw)
        for name, (verb, body, _) in INVALID.items():
            await publish(name, verb, json.dumps(body).encode())
        await publish("good", "submit", json.dumps(SUBMIT).encode())
        await row_soon(shared, "select 1 from task where task_id = 'good'", within=20)
        assert await client.result("good", str, 20) == "x"
        letters = await client.dead_letters()
        assert {letter.subject.split(".")[3]: letter.size for letter in letters.dead_letters} == {
            name: len(raw) for name, raw in DEAD.items() if name != "nul-in-a-word"
        }
        for name, (_, _, message) in INVALID.items():
            record = await client.find_command(f"id-{name}")
            assert record.answer is not None and not record.answer.ok
            assert record.answer.code == CODES.get(name, "invalid"), record.answer.message
            assert message in record.answer.message, record.answer.message
        for name in DEAD:
            record = await client.find_command(f"id-{name}")
            assert record.answer is not None and record.answer.code == "invalid"
    assert [row["task_id"] for row in await rows(shared, "select task_id from task")] == ["good"]


async def test_an_oversized_command_never_leaves_a_client_and_its_connection_lives(shared: Server) -> None:
    async with serving(app, shared) as client:
        for size in (930_000, 1_100_000, 5_000_000):
            with pytest.raises(
                ValueError, match="are too many, 921,600 are allowed: store it elsewhere and pass a reference"
            ):
                await client.submit(echo, "x" * size)
        assert await (await client.submit(echo, "x" * 900_000)).result(10) == "x" * 900_000


async def test_an_input_that_the_kind_does_not_take_fails_its_task_with_the_path(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit("echo", {"nam": "x"}, task_id="t")
        await row_soon(shared, "select 1 from task where task_id = 't' and status = 'failed'")
        failure = (await client.get("t")).failure
        assert failure is not None and failure.type == "InvalidInput"
        assert failure.message == "echo(name: str) -> str: Object contains unknown field `nam`"
        assert (await events(shared, "t"))[-1]["message"] == f"Failed: InvalidInput: {failure.message}"
