"""A request to a model whose answer is a decision: it tells what was decided."""

from collections.abc import Mapping
from typing import Any

from outlive.actors.agents.decisions import Call, Decided, Usage
from outlive.actors.agents.reading import Ability
from outlive.actors.agents.requests import Request
from outlive.actors.agents.spending import Spending
from outlive.actors.agents.versions import Version
from outlive.actors.failures import printable
from outlive.actors.flow import Flow
from outlive.actors.history import call_text
from outlive.protocol import codec
from outlive.protocol.tools import AnyTool


class Decision(Request[Decided]):
    """A decision as a step."""

    __slots__ = ("_tools",)

    def __init__(
        self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any], *, before: Version | None,
        spending: Spending, most: Usage, tools: Mapping[str, Ability],
    ) -> None:  # fmt: skip
        """See `Request`; `tools` are the agent's."""
        super().__init__(flow, step_id, tool, bound, before=before, spending=spending, most=most)
        self._tools = tools

    def told(self, value: Decided) -> str:
        """Say what was decided."""
        parts = ["a plan"] if value.plan is not None else []
        parts += [self._call(call) for call in value.calls[:3]]
        parts += [f"{len(value.calls) - 3} more calls"] if len(value.calls) > 3 else []
        parts += ["a question to a person"] if value.question is not None else []
        parts += [f"to look at step {recall.step} again" for recall in value.recalls]
        parts += ["the goal is reached"] if value.finished else []
        changed = self.changed(Version(value.model, value.prompt, ""))
        useless = f"nothing of use: {'; '.join(value.problems)[:200]}" if value.problems else "nothing of use"
        return printable(f"Decided{changed}: {', '.join(parts) or useless}")

    def _call(self, call: Call) -> str:
        tool = self._tools.get(call.tool)
        order = tuple(tool.arguments.signature.parameters) if tool is not None else ()
        return call_text(call.tool, codec.encode(call.arguments), order)
