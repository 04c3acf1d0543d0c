"""An agent of pydantic-ai as a kind: what is declared and refused, how it stops, and what its tools' errors lead to."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry, ToolOutput
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel

from outlive.actors import App, Operation, Outcome, RetryPolicy, TaskCancelled, TaskFailed, Unavailable
from outlive.actors.agents.existing import declare_existing, durable_tool, operation
from outlive.actors.agents.models import without_retries
from outlive.actors.signature import RegistrationError
from outlive.actors.testing import Server
from outlive.protocol.commands import Cancel, Pause, Resume
from tests.actors.scene import attempts, dying, events, ledger, row_soon, serving, status_soon, steps, told


class Report(BaseModel):
    total: int


def calling(*names: str, requests: list[int] | None = None) -> FunctionModel:
    """A model that calls tools one after the other, then says what it was told last."""

    def answer(messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        if requests is not None:
            requests.append(1)
        told = [p for m in messages for p in m.parts if p.part_kind in {"tool-return", "retry-prompt"}]
        if len(told) < len(names):
            return ModelResponse(parts=[ToolCallPart(names[len(told)], {})])
        return ModelResponse(parts=[TextPart(str(getattr(told[-1], "content", "")) if told else "done")])

    return FunctionModel(answer)


def _agent(model: Model[Any], **options: Any) -> Agent[None, str]:
    return Agent(model, name="clerk", **options)


# --- declared


def test_the_kind_takes_a_goal_and_returns_the_agents_output() -> None:
    app = App("x")
    kind = declare_existing(app, Agent(calling(), name="clerk", output_type=Report), title="audit {goal}")
    assert app.kinds["clerk"] is kind
    assert (kind.result_type, kind.describe({"goal": "this"})) == (Report, "audit this")
    assert kind.input_schema["required"] == ["goal"]
    several = declare_existing(
        app, Agent(calling(), output_type=[ToolOutput(int), str, DeferredToolRequests]), name="b"
    )
    assert several.result_type == int | str


def total(text: str) -> int:
    return len(text)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Agent(calling()), 'it has no name. Write: Agent(..., name="clerk")'),
        (lambda: Agent(calling(), name="a clerk"), "name 'a clerk' is not allowed"),
        (lambda: Agent(calling(), name="clerk", output_type=total), "made by a function: its type is not known"),
        (lambda: Agent(calling(), name="clerk", output_type=[Report, str]), "Report | str cannot be stored"),
    ],
)
def test_what_cannot_be_a_kind_is_refused(make: Callable[[], Agent[None, Any]], words: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        declare_existing(App("x"), make())
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (durable_tool(read_only=True, settle=3.0), "read_only=True says that it changes nothing, so settle=3.0"),
        (durable_tool(read_only=True, settle=0.0), "read_only=True says that it changes nothing, so settle=0.0"),
        (durable_tool(key_ttl=3.0), "key_ttl=3.0 has no meaning without idempotent=True"),
        ({"outlive": {"readonly": True}}, "has no option 'readonly'. It may have: approval_ttl, classify"),
        ({"outlive": "read_only"}, "metadata 'outlive' is 'read_only'. Write: metadata=durable_tool(read_only=True)"),
    ],
)
def test_metadata_that_contradicts_itself_is_refused(metadata: dict[str, Any], words: str) -> None:
    agent = _agent(calling())
    agent.tool_plain(metadata=metadata)(_tool)
    with pytest.raises(RegistrationError, match=r"test_existing\.py:") as refused:
        declare_existing(App("x"), agent)
    assert words in str(refused.value)


def _tool() -> str:
    return "a"


def test_an_operation_is_known_within_a_tool_only() -> None:
    with pytest.raises(RuntimeError, match="belongs into a tool of an agent that runs as a task"):
        operation()


def test_the_sdk_of_a_provider_makes_no_attempts_of_its_own() -> None:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.fallback import FallbackModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    gpt = OpenAIChatModel("gpt-5", provider=OpenAIProvider(api_key="x", base_url="http://127.0.0.1:9"))
    claude = AnthropicModel("claude-sonnet-4-5", provider=AnthropicProvider(api_key="x"))
    assert (gpt.client.max_retries, claude.client.max_retries) == (2, 2)
    without_retries(FallbackModel(gpt, claude))
    assert (gpt.client.max_retries, claude.client.max_retries) == (0, 0)


# --- run


async def test_a_cancel_in_a_tool_ends_it_with_what_is_unknown(shared: Server) -> None:
    app, agent, begun = App("x"), _agent(calling("hang")), asyncio.Event()

    @agent.tool_plain
    async def hang() -> str:
        begun.set()
        await asyncio.sleep(60)
        return "late"

    kind = declare_existing(app, agent)
    async with serving(app, shared, grace=0.2) as client:
        handle = await client.submit(kind, "go")
        await begun.wait()
        await client.command(handle.task_id, Cancel())
        with pytest.raises(TaskCancelled, match="clerk"):
            await handle.result(timeout=20)
        assert await ledger(shared, handle.task_id) == [("call-1-1", "unknown", 1), ("request-1", "succeeded", 1)]


async def test_a_pause_lets_the_tool_end_and_resume_goes_on_behind_it(shared: Server) -> None:
    requests: list[int] = []
    app, agent, begun, go = App("x"), _agent(calling("slow", requests=requests)), asyncio.Event(), asyncio.Event()

    @agent.tool_plain
    async def slow() -> str:
        begun.set()
        await go.wait()
        return "slept"

    kind = declare_existing(app, agent)
    async with serving(app, shared) as client:
        handle = await client.submit(kind, "go")
        await begun.wait()
        await client.command(handle.task_id, Pause())
        go.set()
        await status_soon(shared, handle.task_id, "paused")
        assert len(requests) == 1
        await client.command(handle.task_id, Resume())
        assert await handle.result(timeout=20) == "slept"
        assert len(requests) == 2


async def test_what_a_tool_says_to_the_model_is_recorded_as_such(shared: Server) -> None:
    requests: list[int] = []
    app, agent, made = App("x"), _agent(calling("again", "wait", requests=requests)), []

    @agent.tool_plain(metadata=durable_tool(read_only=True), retries=2)
    def again() -> str:
        made.append("again")
        raise ModelRetry("not like this")

    @agent.tool_plain
    async def wait() -> str:
        made.append("wait")
        if made.count("wait") == 1:
            await asyncio.sleep(60)
        return "waited"

    kind = declare_existing(app, agent)
    async with dying(app, shared) as client:
        handle = await client.submit(kind, "go")
        await row_soon(shared, "select 1 from operation where step_id = 'call-2-1'")
    assert made == ["again", "wait"]
    assert len(requests) == 2
    async with serving(app, shared):
        await status_soon(shared, handle.task_id, "paused")
    assert (made, len(requests)) == (["again", "wait"], 2)


async def test_an_error_that_may_pass_is_tried_again_and_one_that_may_not_fails_the_task(shared: Server) -> None:
    app, agent, tries = App("x"), _agent(calling("shaky", "broken")), []
    quick = RetryPolicy(base=0.01)

    @agent.tool_plain(metadata=durable_tool(read_only=True, retries=quick))
    def shaky() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("not now")
        return "at last"

    @agent.tool_plain(metadata=durable_tool(idempotent=True))
    def broken() -> str:
        raise ValueError("of the tool")

    kind = declare_existing(app, agent)
    async with serving(app, shared) as client:
        handle = await client.submit(kind, "go")
        with pytest.raises(TaskFailed, match="ValueError: of the tool"):
            await handle.result(timeout=20)
        assert len(tries) == 3
        assert [(step, number) for step, number, _ in await attempts(shared, handle.task_id)] == [
            ("call-1-1", 1), ("call-1-1", 2), ("call-2-1", 1),
        ]  # fmt: skip


async def test_an_effect_with_a_reconciler_is_found_out(shared: Server) -> None:
    requests: list[int] = []
    keys: list[str] = []
    app, agent, begun = App("x"), _agent(calling("pay", requests=requests)), asyncio.Event()

    async def find(op: Operation) -> Outcome[str]:
        return Outcome.happened("found") if op.key in keys else Outcome.did_not_happen()

    @agent.tool_plain(metadata=durable_tool(reconcile=find, settle=0.0))
    async def pay() -> str:
        keys.append(operation().key)
        begun.set()
        await asyncio.sleep(60)
        return "paid"

    kind = declare_existing(app, agent)
    async with dying(app, shared) as client:
        handle = await client.submit(kind, "go")
        await begun.wait()
    async with serving(app, shared) as client:
        assert await client.result(handle.task_id, str, timeout=20) == "found"
    assert (len(keys), len(requests)) == (1, 2)
    resumed = next(event for event in await events(shared, handle.task_id) if "Resumed" in event["message"])
    assert [asked["answer"] for asked in resumed["operations"]] == ["not known: find is asked"]


def test_a_reconciler_takes_the_arguments_of_its_tool() -> None:
    agent = _agent(calling("pay"))

    def find(op: Operation, cents: int) -> Outcome[str]:
        return Outcome.did_not_happen()

    @agent.tool_plain(metadata=durable_tool(reconcile=find))
    async def pay(amount: int, note: str = "") -> str:
        return "paid"

    with pytest.raises(RegistrationError) as refused:
        declare_existing(App("x"), agent)
    assert "Write: def find(op: Operation, amount, note=None)" in str(refused.value)


async def test_a_tool_without_a_step_runs_on_every_resume(shared: Server) -> None:
    app, agent, made = App("x"), _agent(calling("plain", "look")), []

    @agent.tool_plain(metadata={"outlive": False})
    def plain() -> str:
        made.append("plain")
        return "plain"

    @agent.tool_plain(metadata=durable_tool(read_only=True))
    def look() -> str:
        return "looked"

    kind = declare_existing(app, agent)
    async with serving(app, shared) as client:
        handle = await client.submit(kind, "go")
        assert await handle.result(timeout=20) == "looked"
        assert [
            (step, name) for step, name, status in await steps(shared, handle.task_id) if status == "completed"
        ] == [
            ("request-1", "clerk__model.request"),
            ("request-2", "clerk__model.request"),
            ("call-2-1", "clerk.look"),
            ("request-3", "clerk__model.request"),
        ]
        assert "clerk asks its model" in await told(shared, handle.task_id)
