"""Asks a model through pydantic-ai: one request, one answer, no retry of its own and no memory."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import msgspec
from pydantic_ai import direct
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters, infer_model
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.profiles import DEFAULT_THINKING_TAGS
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from outlive.actors.agents.decisions import Usage
from outlive.actors.agents.reading import FINISH
from outlive.actors.classifier import classify
from outlive.protocol import codec
from outlive.protocol.operations import ErrorClass

Mode: TypeAlias = Literal["tools", "json"]
"""How a decision is expressed: by tool calls, or (for models without them) as one JSON object."""

_STUMBLES: Final = (ValueError, LookupError, TypeError, AttributeError)
"""What an adapter raises over an answer that it does not expect."""

LISTED: Final = 20
"""Items of a plan that are named in the schema of each tool."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that the model may choose: a tool or a control word.

    Attributes:
        name: what it is called by.
        description: for the model.
        schema: JSON Schema of its arguments.
    """

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A choice as the model wrote it: a name, and arguments that may be no object at all."""

    name: str
    arguments: Any


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: choices in their order, plain text, the model's name as reported, and the cost."""

    chosen: Sequence[Chosen]
    text: str
    reported: str
    usage: Usage = field(default_factory=Usage)


def resolve(model: Any) -> Model:
    """Return the model of a name like ``openai:gpt-5`` or of an instance; its own retries are switched off.

    A provider's client retries twice by default: hidden from the ledger, and paid for.
    """
    found = infer_model(model)
    without_retries(found)
    return found


def model_name(model: Any) -> str:
    """Return the name by which a model is configured."""
    return model if isinstance(model, str) else str(getattr(model, "model_id", None) or model.model_name)


def without_retries(model: Any) -> None:
    """Switch off the retries that the client of a model's provider makes by itself: attempts are ours, and recorded."""
    client = getattr(model, "client", None)
    if client is not None and hasattr(client, "max_retries"):
        client.max_retries = 0
    for inner in (getattr(model, "wrapped", None), *cast("list[Any]", getattr(model, "models", None) or [])):
        if inner is not None:
            without_retries(inner)


async def ask(
    model: Model,
    instructions: str,
    text: str,
    offers: Sequence[Offer],
    *,
    mode: Mode,
    settings: Mapping[str, Any],
    words: Callable[[str], None] | None = None,
) -> Answer:
    """Make one request; `words` is given the answer's text piece by piece while it comes.

    Raises:
        ModelHTTPError, ModelAPIError, TimeoutError, OSError: what its client raises, for `outlive.actors.classifier`.
    """
    parameters = _as_tools(offers) if mode == "tools" else _as_json(offers)
    if mode == "json":
        instructions = f"{instructions}\n\n{_choices(offers)}"
    request = ModelRequest(parts=[UserPromptPart(text)], instructions=instructions)
    options = cast("ModelSettings", dict(settings))
    try:
        if words is not None:
            response = await _streamed(model, request, options, parameters, words)
        else:
            response = await direct.model_request(
                model, [request], model_settings=options, model_request_parameters=parameters, instrument=False
            )
    except (ModelAPIError, UnexpectedModelBehavior, *_STUMBLES) as error:
        if isinstance(error, ModelAPIError) and not isinstance(error.__cause__, ValueError):
            raise
        return Answer((), f"(no answer that can be read: {_why(error)})", model_name(model))
    return _answer(response, mode, model.profile.get("thinking_tags", DEFAULT_THINKING_TAGS))


def _why(error: Exception) -> str:
    """Say why an answer could not be read, without its words: it may tell what the model thinks."""
    return error.message.partition("\n")[0] if isinstance(error, UnexpectedModelBehavior) else type(error).__name__


async def _streamed(
    model: Model,
    request: ModelRequest,
    settings: ModelSettings,
    parameters: ModelRequestParameters,
    words: Callable[[str], None],
) -> ModelResponse:
    async with direct.model_request_stream(
        model, [request], model_settings=settings, model_request_parameters=parameters, instrument=False
    ) as stream:
        async for event in stream:
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                words(event.part.content)
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                words(event.delta.content_delta)
        return stream.get()


def _as_tools(offers: Sequence[Offer]) -> ModelRequestParameters:
    tools = [
        ToolDefinition(name=o.name, description=o.description, parameters_json_schema=o.schema)
        for o in offers if o.name != FINISH
    ]  # fmt: skip
    finish = [
        ToolDefinition(name=o.name, description=o.description, parameters_json_schema=o.schema, kind="output")
        for o in offers if o.name == FINISH
    ]  # fmt: skip
    return ModelRequestParameters(
        function_tools=tools, output_tools=finish, output_mode="tool", allow_text_output=not finish
    )


def _as_json(offers: Sequence[Offer]) -> ModelRequestParameters:
    """One object ``{"action": name, "arguments": {...}}``, each action with the schema of its arguments."""
    defs: dict[str, Any] = {}
    branches: list[dict[str, Any]] = []
    for offer in offers:
        schema = dict(offer.schema)
        defs.update(schema.pop("$defs", {}))
        branches.append(
            {
                "type": "object",
                "description": offer.description,
                "properties": {"action": {"const": offer.name}, "arguments": schema},
                "required": ["action", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = branches[0] if len(branches) == 1 else {"type": "object", "anyOf": branches}
    if defs:
        schema = {**schema, "$defs": defs}
    return ModelRequestParameters(
        output_mode="native", output_object=OutputObjectDefinition(json_schema=schema, name="decision"),
        allow_text_output=True,
    )  # fmt: skip


def _choices(offers: Sequence[Offer]) -> str:
    """Write down what may be chosen: many servers hold an answer to its schema, and do not show the schema to the model."""
    lines = [f"- {o.name}: {o.description} arguments: {codec.canonical(o.schema).decode()}" for o in offers]
    return "\n".join(['Answer with one JSON object, {"action": NAME, "arguments": {...}}. The actions:', *lines])


def _answer(response: ModelResponse, mode: Mode, tags: tuple[str, str]) -> Answer:
    """Take what was chosen; a model's thinking is dropped here and exists nowhere else."""
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    text = _without_thoughts("".join(part.content for part in response.parts if isinstance(part, TextPart)), tags)
    chosen = [Chosen(call.tool_name, _arguments(call)) for call in calls]
    if mode == "json" and not chosen and (found := _from_json(text)) is not None:
        chosen, text = [found], ""
    if response.finish_reason == "length":  # an adapter may take a thought that was cut off for text
        text = "(cut off: the answer took more tokens than it may)"
    usage = response.usage
    return Answer(
        chosen, text, response.model_name or "",
        Usage(input=usage.input_tokens, output=usage.output_tokens, cached=usage.cache_read_tokens),
    )  # fmt: skip


def _without_thoughts(text: str, tags: tuple[str, str]) -> str:
    """Leave out what stands between a model's own marks, one of which may be missing."""
    opening, closing = tags
    return text.rpartition(closing)[2].partition(opening)[0]


def _arguments(call: ToolCallPart) -> Any:
    if not isinstance(call.args, str):
        return call.args or {}
    try:
        return codec.decode(call.args.encode() or b"{}")
    except (msgspec.DecodeError, ValueError):
        return call.args


def _from_json(text: str) -> Chosen | None:
    begin, end = text.find("{"), text.rfind("}")
    try:
        found = codec.decode(text[begin : end + 1].encode())
    except (msgspec.DecodeError, ValueError):
        return None
    if not isinstance(found, dict):
        return None
    fields = cast("dict[str, Any]", found)
    return Chosen(str(fields.get("action", "")), fields.get("arguments", {}))


def error_class(error: BaseException) -> ErrorClass | None:
    """Name the class of what a request to a model raised: a provider's client wraps the error that tells."""
    if isinstance(error, ModelHTTPError) or not isinstance(error, ModelAPIError):
        return None
    return classify(error.__cause__) if error.__cause__ is not None else ErrorClass.UNAVAILABLE


def with_item(schema: dict[str, Any], items: Sequence[str]) -> dict[str, Any]:
    """Return a tool's schema with ``plan_item``: each call names the item that it serves. Of a long plan any text."""
    if not items:
        return schema
    item: dict[str, Any] = {"type": "string", "description": "the item of your plan that this call serves"}
    if len(items) <= LISTED:
        item["enum"] = list(items)
    properties = {"plan_item": item, **schema.get("properties", {})}
    return {**schema, "properties": properties, "required": ["plan_item", *schema.get("required", [])]}


def without_thinking(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's response, as pydantic-ai writes it in JSON, without its thinking parts: those are stored nowhere."""
    parts: Any = response.get("parts")
    if not isinstance(parts, list):
        return dict(response)
    kept = [part for part in parts if not (isinstance(part, dict) and part.get("part_kind") == "thinking")]
    return {**response, "parts": kept}
