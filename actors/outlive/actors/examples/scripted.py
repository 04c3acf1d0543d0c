"""A model without a network: it reads the request that any model gets, and decides by rules written down here.

The scripts know nothing but the text of the request. What the others see (facts, a plan, fenced results) is all they see.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

import msgspec
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

_RESULT: Final = re.compile(
    r'<(?:result|answer) step="([^"]+)" (?:tool|of)="([^"]+)"( failed)?[^>]*>\n(.*?)\n</(?:result|answer)>', re.DOTALL
)
_PLAN: Final = re.compile(r"^- (\S+) \((done|failed|waiting)\): ", re.MULTILINE)
_LINE: Final = re.compile(r"^step (\S+): (\w+)\(", re.MULTILINE)

Choices: TypeAlias = Sequence[tuple[str, dict[str, Any]]]
"""Names with arguments."""


@dataclass(frozen=True, slots=True)
class Result:
    """A result that the request shows.

    Attributes:
        step: its step.
        tool: what was called.
        ok: it did not fail.
        text: what came back.
    """

    step: str
    tool: str
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What a request says.

    Attributes:
        goal: of the task.
        plan: what became of each item, by its id.
        results: in the order in which they are shown, which is that of the steps.
        short: steps that are shown in a line only, with their tools.
    """

    goal: str
    plan: dict[str, str]
    results: list[Result]
    short: list[tuple[str, str]]

    @classmethod
    def read(cls, text: str) -> Self:
        """Take a request apart."""
        results = [Result(step, tool, not failed, body) for step, tool, failed, body in _RESULT.findall(text)]
        bare = _RESULT.sub("", text)
        goal = bare.removeprefix("# Goal\n").partition("\n\n#")[0]
        return cls(goal, dict(_PLAN.findall(bare)), results, _LINE.findall(bare))

    def of(self, tool: str) -> list[Result]:
        """Return the results of a tool, failures too."""
        return [result for result in self.results if result.tool == tool]

    def values(self, tool: str, wanted: Any) -> list[Any]:
        """Return the results of a tool, decoded; failures are left out."""
        return [msgspec.json.decode(result.text, type=wanted) for result in self.of(tool) if result.ok]

    def forgotten(self, tool: str) -> Choices:
        """Return what brings results of a tool back that are not shown whole any more."""
        return [("recall", {"step": step}) for step, name in self.short if name == tool]


Decide: TypeAlias = Callable[[Seen], Choices]
"""What a script is: all that it may choose by is in the request."""


def model(decide: Decide) -> FunctionModel:
    """Return a script as a model."""

    async def answer(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        request = messages[-1]
        assert isinstance(request, ModelRequest)
        said = next(part.content for part in request.parts if isinstance(part, UserPromptPart))
        return ModelResponse(parts=[ToolCallPart(name, args) for name, args in decide(Seen.read(str(said)))])

    return FunctionModel(answer, model_name="scripted")


def items(*texts: tuple[str, str], after: dict[str, list[str]] | None = None) -> tuple[str, dict[str, Any]]:
    """Return the choice of a plan: ids with what they are, and which ids an item comes after."""
    waits = after or {}
    return "make_plan", {"items": [{"id": id_, "text": text, "after": waits.get(id_, [])} for id_, text in texts]}
