"""The exam's agent: its model follows a script, and every request to it is counted in the shop outside.

``EXAM_MODEL`` is the model of a worker, ``EXAM_ALSO`` another one that it still has.
"""

import asyncio
import os
import re
from typing import Any, Final

import msgspec
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from outlive.actors.app import App
from outlive.actors.chaoskit import shop
from outlive.protocol.tools import RetryPolicy

MODEL: Final = "EXAM_MODEL"
ALSO: Final = "EXAM_ALSO"
ANSWERS: Final = 3.0
"""Seconds within which a decision must be there."""

FOR: Final = "Buy paper and a ribbon for "
ASK_FIRST: Final = "Ask first whether the ribbon is wanted."

_NUMBER: Final = re.compile(r'tool="order"[^>]*>\n(\d+)\n')


class Bought(msgspec.Struct, frozen=True):
    """What the agent's work came to.

    Attributes:
        orders: numbers of the orders, as the shop gave them.
        model: which one said so.
    """

    orders: list[int]
    model: str


def _choice(model: str, text: str) -> tuple[int, str, dict[str, Any]]:
    """Return the number of the decision and what it is, by the facts that the request holds alone."""
    orders, asks = [int(number) for number in _NUMBER.findall(text)], ASK_FIRST in text
    if 'tool="look"' not in text:
        return 1, "look", {"item": "paper"}
    if not orders:
        return 2, "order", {"item": "paper"}
    if asks and 'of="person"' not in text:
        return 3, "ask_person", {"question": "May it have a ribbon?"}
    if len(orders) == 1:
        return 3 + asks, "order", {"item": "ribbon"}
    return 4 + asks, "finish", {"output": {"orders": orders, "model": model}}


def _model(name: str) -> FunctionModel:
    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        text = str(messages[-1].parts[0].content)  # type: ignore[union-attr]  # the agent's request is one text
        number, tool, arguments = _choice(name, text)
        task = text.partition(FOR)[2].partition("\n")[0]
        await asyncio.to_thread(shop.shop().effect, f"decision-{number}-of-{task}", name)
        return ModelResponse(
            parts=[ToolCallPart(tool, arguments)], usage=RequestUsage(input_tokens=100, output_tokens=10)
        )

    return FunctionModel(answer, model_name=name)


app: Final = App("exam_agent")
buyer: Final = app.agent(
    "buyer",
    model=_model(os.environ.get(MODEL, "m-1")),
    also=[_model(os.environ[ALSO])] if ALSO in os.environ else [],
    instructions="Buy what is wanted.",
    tools=[shop.look, shop.order],
    output=Bought,
    plans=False,
    timeout=ANSWERS,
    retries=RetryPolicy(max_attempts=2, base=0.05, cap=0.1),
)
