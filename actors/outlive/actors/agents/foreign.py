"""What an agent of pydantic-ai is, and what it asks its model: read from what pydantic-ai shows of it."""

import functools
import inspect
import operator
import typing
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias, cast

from pydantic_ai import Agent, DeferredToolRequests, RunContext
from pydantic_ai.durable_exec import DurableOperationId
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.output import NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.tools import Tool as PydanticTool
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, ToolsetTool
from pydantic_core import to_json

from outlive.actors import dynamic
from outlive.actors.agents import models
from outlive.actors.agents.context import tokens
from outlive.actors.agents.decisions import Usage
from outlive.actors.dynamic import DynamicOptions
from outlive.actors.json_arguments import JsonArguments
from outlive.actors.signature import Declared
from outlive.protocol import codec
from outlive.protocol.tools import AnyTool

KEY: Final = "outlive"
"""Where a tool's metadata says how it behaves as a step."""

Config: TypeAlias = DynamicOptions | None
"""What it says; None: nothing."""


def resolve(_operation_id: DurableOperationId, tool: object | None, tool_name: str) -> Config | Literal[False]:
    """Return what a tool's metadata says; False: it runs between the steps."""
    if not isinstance(tool, ToolsetTool):
        return None
    return options_of(tool_name, None, tool.tool_def.metadata, tool.tool_def.parameters_json_schema)


def options_of(
    tool_name: str, fn: Callable[..., Any] | None, metadata: dict[str, Any] | None, schema: dict[str, Any]
) -> Config | Literal[False]:
    """Read a tool's metadata. Raises `RegistrationError` where it contradicts itself."""
    given: Any = (metadata or {}).get(KEY)
    if given is None or given is False:
        return given
    declared = named(tool_name, fn)
    if not isinstance(given, dict):
        raise declared.refuse(f"metadata {KEY!r} is {given!r}. Write: metadata=durable_tool(read_only=True)")
    dynamic.check_options(declared, cast("dict[str, Any]", given), schema)
    return cast("DynamicOptions", given)


def named(tool_name: str, fn: Callable[..., Any] | None) -> Declared:
    """Name a tool in what it is refused with."""
    return Declared("tool", tool_name, fn or object)


def step_of(kind: str, tool: PydanticTool[Any], fn: Callable[..., Awaitable[Any]]) -> AnyTool | None:
    """Return a tool as an app knows it before anything runs; None: it is no step. Raises `RegistrationError`."""
    schema = tool.function_schema.json_schema
    options = options_of(tool.name, tool.function, tool.metadata, schema)
    if options is False:
        return None
    options = with_approval(options or {}) if tool.requires_approval else options or {}
    arguments = JsonArguments(tool.name, schema)
    return dynamic.make(named(tool.name, tool.function), f"{kind}.{tool.name}", fn, arguments, options)


def with_approval(options: DynamicOptions) -> DynamicOptions:
    """Ask a person; what was freely repeated stays so, once it was agreed to."""
    asked: DynamicOptions = {**options, "requires_approval": options.get("requires_approval") or True}
    if asked.pop("read_only", False):
        asked["idempotent"] = True
    return asked


def function_tools(agent: Agent[Any, Any]) -> list[PydanticTool[Any]]:
    """Return the functions that an agent has as tools."""
    found: list[PydanticTool[Any]] = []

    def visit(toolset: AbstractToolset[Any]) -> None:
        if isinstance(toolset, FunctionToolset):
            found.extend(toolset.tools.values())

    for toolset in agent.toolsets:
        toolset.apply(visit)
    return found


def code_version(agent: Agent[Any, Any]) -> str:
    """Return a digest of an agent's model and the source of its tools (hex)."""
    parts = [str(getattr(agent.model, "model_id", agent.model))]
    for tool in sorted(function_tools(agent), key=lambda each: each.name):
        try:
            parts.append(inspect.getsource(inspect.unwrap(tool.function)))
        except (OSError, TypeError):  # made at run time, or only bytecode is installed
            parts.append(tool.name)
    return codec.digest("\n".join(parts).encode()).hex()


def output_type(declared: Declared, spec: Any) -> Any:
    """Return the type of an agent's output, from what pydantic-ai lets one write. Raises `RegistrationError`."""
    kinds = list(_output_types(spec))
    if not kinds or any(not _is_type(each) for each in kinds):
        raise declared.refuse("its output is made by a function: its type is not known. Write: output_type=Report")
    output = functools.reduce(operator.or_, kinds)
    try:
        codec.check_type(output)
    except codec.NotStorable as error:
        raise declared.refuse(f"its output of type {output} cannot be stored: {error.why}") from None
    return output


def _output_types(spec: Any) -> Iterator[Any]:
    if isinstance(spec, ToolOutput):
        yield from _output_types(spec.output)
    elif isinstance(spec, NativeOutput | PromptedOutput):
        yield from _output_types(cast("NativeOutput[Any]", spec).outputs)
    elif isinstance(spec, list | tuple):
        for each in cast("Sequence[Any]", spec):
            yield from _output_types(each)
    elif spec is not DeferredToolRequests:  # those are answered within the task
        yield spec


def _is_type(spec: Any) -> bool:
    return isinstance(spec, type) or typing.get_origin(spec) is not None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks, as pydantic-ai tells it."""

    model: str
    messages: list[Any]
    settings: dict[str, Any]
    tools: list[Any]

    @classmethod
    def of(cls, cache_key: tuple[object, ...]) -> Self:
        """Take it from the key of a request, or of one that has a conversation made shorter."""
        context = cast("RunContext[Any]", cache_key[-1])
        if isinstance(cache_key[1], ModelRequestContext):
            each = cache_key[1]
            messages, settings, offered = each.messages, each.model_settings, each.model_request_parameters
        else:
            messages, settings, offered = cast("tuple[Any, Any, Any]", cache_key[1:4])
        own = getattr(context.model, "settings", None) or {}
        return cls(
            models.model_name(context.model), messages, {**own, **(settings or {})},
            [*offered.function_tools, *offered.output_tools],
        )  # fmt: skip

    def measured(self, output_tokens: int) -> tuple[str, Usage]:
        """Return the version of the prompt, and what the request may use at most."""
        instructions = getattr(self.messages[-1], "instructions", None) or ""
        tools = to_json(self.tools, fallback=str)
        said = ModelMessagesTypeAdapter.dump_json(self.messages)
        most = Usage(
            input=tokens(said.decode()) + tokens(tools.decode()),
            output=int(self.settings.get("max_tokens") or output_tokens),
        )
        return codec.digest(instructions.encode(), tools).hex(), most


def used(usage: dict[str, Any]) -> Usage:
    """Read what a request has cost, as pydantic-ai writes it."""
    return Usage(
        input=usage.get("input_tokens") or 0, output=usage.get("output_tokens") or 0,
        cached=usage.get("cache_read_tokens") or 0,
    )  # fmt: skip
