"""A model that follows a script, and counts what it is asked."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

Turn = Sequence[tuple[str, dict[str, Any]]] | str | Exception | Callable[[str], Any]
"""Choices, plain text, an error, or a function of the request that gives one of them."""


def plan(*items: str) -> list[tuple[str, dict[str, Any]]]:
    """The choice of a plan whose items are also their texts."""
    return [("make_plan", {"items": [{"id": item, "text": item} for item in items]})]


def finish(output: Any) -> list[tuple[str, dict[str, Any]]]:
    """The choice to be done."""
    return [("finish", {"output": output})]


class Script:
    """Answers turn by turn; the last turn stands for all that follow."""

    def __init__(self, *turns: Turn, tokens: tuple[int, int] = (100, 10), name: str = "scripted") -> None:
        self.requests: list[str] = []
        self.instructions: list[str] = []
        self.offered: list[list[str]] = []
        self.model = FunctionModel(self._answer, model_name=name)
        self._turns = turns
        self._tokens = tokens

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text = str(messages[-1].parts[0].content)  # type: ignore[union-attr]
        self.requests.append(text)
        self.instructions.append(info.instructions or "")
        self.offered.append([tool.name for tool in (*info.function_tools, *info.output_tools)])
        turn = self._turns[min(len(self.requests), len(self._turns)) - 1]
        if callable(turn) and not isinstance(turn, Exception):
            turn = turn(text)
        if inspect.isawaitable(turn):
            turn = await turn
        if isinstance(turn, Exception):
            raise turn
        usage = RequestUsage(input_tokens=self._tokens[0], output_tokens=self._tokens[1])
        thought = ThinkingPart("CANARY-THOUGHT")
        if isinstance(turn, str):
            return ModelResponse(parts=[thought, TextPart(turn)], usage=usage)
        return ModelResponse(parts=[thought, *(ToolCallPart(name, dict(args)) for name, args in turn)], usage=usage)
