"""Agents of pydantic-ai as they might exist already; requests to their model and effects are counted in the fake service."""

import asyncio

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from outlive.actors import App
from outlive.actors.agents.existing import declare_existing, durable_tool, operation
from tests.chaos.remote import service

app = App("existing")
SECRET = "the-model-thinks-of-a-canary"  # noqa: S105  # it must not be stored


async def _count(name: str, key: str | None = None) -> int:
    return await asyncio.to_thread(service().effect, name, key=key, keys=False)


async def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Call what the prompt says, a line at a time: ``look, pay 5``; then sum up."""
    await _count("request")
    prompt = next(str(p.content) for m in messages for p in m.parts if isinstance(p, UserPromptPart))
    answers = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
    done, lines = len(answers), [line.split(",") for line in prompt.splitlines()]
    for line in lines:
        if done <= 0:
            calls = [call.split() for call in line]
            parts = [
                ToolCallPart(name, {"amount": int(amount)}, tool_call_id=f"{name}-{amount}") for name, amount in calls
            ]
            return ModelResponse(parts=[ThinkingPart(SECRET, signature=SECRET), *parts])
        done -= len(line)
    return ModelResponse(parts=[ThinkingPart(SECRET), TextPart("; ".join(str(each.content) for each in answers))])


clerk = Agent(FunctionModel(script), name="clerk", instructions="Do what is asked.")


@clerk.tool_plain(metadata=durable_tool(read_only=True))
async def look(amount: int) -> str:
    """Change nothing."""
    await _count("look")
    return f"looked {amount}"


@clerk.tool_plain
async def pay(amount: int) -> str:
    """Have an effect that is sent once."""
    await _count("pay", operation().key)
    return f"paid {amount}"


@clerk.tool_plain(metadata=durable_tool(idempotent=True))
async def post(amount: int) -> str:
    """Have an effect that may be sent again under its key."""
    await asyncio.to_thread(service().effect, "post", key=operation().key)
    return f"posted {amount}"


@clerk.tool_plain(requires_approval=True)
async def send(amount: int) -> str:
    """Have an effect after a yes."""
    await _count("send", operation().key)
    return f"sent {amount}"


work = declare_existing(app, clerk)


class Report(BaseModel):
    """What a typed agent returns."""

    total: int


async def typed(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Answer at once."""
    return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"total": 7})])


report = declare_existing(app, Agent(FunctionModel(typed), name="reporter", output_type=Report))
