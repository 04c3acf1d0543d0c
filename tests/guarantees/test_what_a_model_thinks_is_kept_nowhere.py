"""A model's thinking is in no event, no log, no stored row, no later request, and nothing that people are shown."""

import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from outlive.actors import App
from outlive.actors.testing import Server
from tests.actors.remote import Reply
from tests.actors.scene import rows, serving
from tests.agents.provider import THOUGHT, answer, completion, providing, streamed
from tests.agents.script import finish, plan
from tests.chaos.harness import ROOT, read_progress

LOOK: Final = [("look", {"path": "a", "plan_item": "look"})]
TRUNCATED: Final = answer(
    {"message": {"role": "assistant", "content": f"<think>{THOUGHT} and so on"}, "finish_reason": "length"}
)
TAGGED: Final = answer(
    {"message": {"role": "assistant", "content": f"<think>{THOUGHT}</think>Let me see."}, "finish_reason": "stop"}
)


def _app(model: Any, **options: Any) -> App:
    app = App("thinking")

    @app.tool(read_only=True)
    def look(path: str) -> str:
        """Look at a file."""
        return f"words of {path}"

    app.agent("seeker", model=model, tools=[look], output=int, **options)
    return app


async def _everything(server: Server, task_id: str) -> str:
    """All that is stored in any table or stream, and what commands show of the task."""
    parts: list[str] = []
    for row in await rows(server, "select tablename from pg_tables where schemaname = 'outlive_store'"):
        stored = await rows(server, f"select * from {row['tablename']}")  # noqa: S608  # the name of a table
        parts += [_text(value) for each in stored for value in each.values()]
    parts += [event.decode() for events in (await read_progress(server)).values() for _, event in events]
    for words in (["show"], ["show", "--json"], ["receipt"], ["receipt", "--json"], ["why"], ["export"]):
        parts.append(await _command(server, *words, task_id))
    return "\n".join(parts)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


async def _command(server: Server, *words: str) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outlive", *words, cwd=ROOT, env={**os.environ, **server.environment},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


async def _run(server: Server, app: App) -> str:
    async with serving(app, server) as client:
        await client.submit(app.kinds["seeker"].with_options(task_id="t"), "go")
        assert await client.result("t", int, 60) == 7
        return await _everything(server, "t")


@pytest.mark.parametrize(
    ("replies", "stream"),
    [
        ([completion(plan("look")), completion(LOOK), completion([]), completion(finish(7))], False),
        ([streamed(plan("look"), "I plan"), streamed(LOOK, "I look"), streamed(finish(7), "I end")], True),
        pytest.param(
            [completion(plan("look")), TAGGED, TRUNCATED, completion(LOOK), completion(finish(7))], False,
            marks=pytest.mark.slow,
        ),
        (
            [
                completion(plan("look")), Reply(200, {"hello": THOUGHT}), Reply(500, {"error": {"message": "broken"}}),
                completion(LOOK), completion(finish(7)),
            ],
            False,
        ),
    ],
    ids=["beside its answers", "in a stream", "in its text", "in what cannot be read"],
)  # fmt: skip
async def test_a_provider_sends_it_and_it_is_nowhere(
    shared: Server, capfd: pytest.CaptureFixture[str], replies: Sequence[Reply], stream: bool
) -> None:
    with providing(*replies) as provider:
        everything = await _run(shared, _app(provider.model, stream=stream))
        written = capfd.readouterr()
        assert "words of a" in everything
        assert "CANARY" not in everything
        assert "CANARY" not in provider.bodies, "nor in what the model is shown later"
        assert "CANARY" not in written.out + written.err, "nor in a log"
        assert len(provider.requests) == len(replies)


async def test_a_model_that_decides_by_json_thinks_aloud(shared: Server) -> None:
    texts = [
        f'<think>{THOUGHT}: {{"action": "finish"}}</think>{{"action": "look", "arguments": {{"path": "a"}}}}',
        f"<think>{THOUGHT} {{",
        f'{THOUGHT}</think> {{"action": "finish", "arguments": {{"output": 7}}}}',
    ]
    requests: list[str] = []

    async def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        requests.append(str(messages[-1].parts[0].content))  # type: ignore[union-attr]
        return ModelResponse(parts=[ThinkingPart(THOUGHT), TextPart(texts[len(requests) - 1])])

    app = _app(FunctionModel(think, model_name="aloud"), mode="json", plans=False)
    everything = await _run(shared, app)
    assert "words of a" in requests[1]
    assert "CANARY" not in everything + "".join(requests)
