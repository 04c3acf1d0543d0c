"""The tools of a server as a task knows them: recorded once, called as steps, and compared with what the server has now."""

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast

import msgspec
from mcp import types

from outlive.actors.dynamic import DynamicOptions, make
from outlive.actors.json_arguments import JsonArguments
from outlive.actors.signature import Declared
from outlive.actors.tool import EFFECT
from outlive.protocol import codec, ids
from outlive.protocol.errors import ToolError
from outlive.protocol.tools import AnyTool, Tool

T = TypeVar("T")
SEPARATOR: Final = "__"
"""Between the server's name and the tool's: a name that models' providers and our ids allow."""

_DIGEST: Final = 8


class CallFailed(ToolError):
    """The server says that the tool failed. Nothing says that it had no effect, so an effect counts as unknown.

    Causes: the tool raised an error, refused its arguments, or could not reach what it works on.
    """


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a server says of one of its tools: the part of the record that a changed tool is told by.

    Attributes:
        name: the server's.
        description: for a model.
        input, output: JSON Schemas of the arguments and the result.
        read_only, idempotent, destructive: its hints; None: not given.
    """

    name: str
    description: str = ""
    input: dict[str, Any] = {}
    output: dict[str, Any] | None = None
    read_only: bool | None = None
    idempotent: bool | None = None
    destructive: bool | None = None

    @property
    def digest(self) -> str:
        """Of everything that it says (hex)."""
        return codec.digest(codec.canonical(self)).hex()


def info_of(tool: types.Tool) -> ToolInfo:
    """Return what a server says of a tool."""
    hints = tool.annotations or types.ToolAnnotations()
    return ToolInfo(
        name=tool.name, description=tool.description or tool.title or "", input=tool.input_schema,
        output=tool.output_schema, read_only=hints.read_only_hint, idempotent=hints.idempotent_hint,
        destructive=hints.destructive_hint,
    )  # fmt: skip


def differences(before: ToolInfo, now: ToolInfo | None) -> str:
    """Say in what a tool differs from what is recorded; empty: in nothing."""
    if now is None:
        return "the server has it no more"
    found: list[str] = []
    if before.input != now.input:
        was, has = (set(each.input.get("properties") or {}) for each in (before, now))
        named = [f"{name!r} is gone" for name in sorted(was - has)] + [f"{name!r} is new" for name in sorted(has - was)]
        found.append(f"its input schema ({', '.join(named) or 'types or rules'})")
    if before.output != now.output:
        found.append("its output schema")
    if before.description != now.description:
        found.append("its description")
    found.extend(
        f"its hint {hint}: {getattr(before, hint)} before, {getattr(now, hint)} now"
        for hint in ("read_only", "idempotent", "destructive")
        if getattr(before, hint) != getattr(now, hint)
    )
    return ", ".join(found)


def options_of(info: ToolInfo, given: DynamicOptions, *, trusted: bool) -> DynamicOptions:
    """Return how a tool is met: the hints of a server that is not trusted loosen nothing; the author's word counts most."""
    if given.get("read_only"):
        return given
    if trusted and info.read_only and not any(given.get(name) for name in EFFECT):
        return {**given, "read_only": True}
    hinted: DynamicOptions = {"requires_approval": not trusted or info.destructive is not False}
    if trusted and info.idempotent:
        hinted["idempotent"] = True
    return {**hinted, **given}


def qualified(server: str, tool: str) -> str:
    """Return the name of a server's tool among all tools: ``files__read_file``."""
    name = f"{server}{SEPARATOR}{re.sub(r'[^A-Za-z0-9_-]', '_', tool)}"
    if name == f"{server}{SEPARATOR}{tool}" and len(name) <= ids.ID_LENGTH:
        return name
    digest = hashlib.blake2b(tool.encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{name[: ids.ID_LENGTH - _DIGEST - 1]}-{digest}"


class MCPTools(Mapping[str, AnyTool]):
    """The tools of a server, by the server's names: what ``await server.tools(task)`` gives.

    They are those of the first run, on every run: the listing is a recorded step.
    """

    def __init__(
        self,
        server: str,
        infos: Sequence[ToolInfo],
        call: Callable[[ToolInfo, Any], Callable[..., Awaitable[Any]]],
        verify: Callable[[ToolInfo], Callable[[], Awaitable[None]]],
        options: Callable[[ToolInfo], DynamicOptions],
    ) -> None:
        """Made by the server."""
        self._server = server
        self._infos = {info.name: info for info in infos}
        self._call = call
        self._verify = verify
        self._options = options
        self._tools = {info.name: self._make(info, Any) for info in infos}

    def __getitem__(self, name: str) -> AnyTool:
        """Return a tool whose result is what JSON has."""
        self._check(name)
        return self._tools[name]

    def typed(self, name: str, result: type[T]) -> Tool[..., T]:
        """Return a tool whose result has a type; one that does not fit it is an effect that happened, and cannot be stored."""
        self._check(name)
        return cast("Tool[..., T]", self._make(self._infos[name], result))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tools)

    def __len__(self) -> int:
        return len(self._tools)

    def _check(self, name: str) -> None:
        if name not in self._infos:
            raise KeyError(f"{self._server} has no tool {name!r}. It has: {', '.join(sorted(self._infos)) or 'none'}")

    def _make(self, info: ToolInfo, result: Any) -> AnyTool:
        name = qualified(self._server, info.name)
        fn = self._call(info, result)
        fn.__doc__ = info.description
        declared = Declared("tool", name, fn)
        return make(
            declared, name, fn, JsonArguments(name, info.input), self._options(info), result_type=result,
            verify=self._verify(info),
        )  # fmt: skip


def result_of(answer: types.CallToolResult, info: ToolInfo, limit: int) -> Any:
    """Return what a call gave: the structured content, or the texts; cut at `limit` characters."""
    if answer.structured_content is None:
        return _cut("\n".join(_text(block) for block in answer.content), limit)
    value: Any = answer.structured_content
    if (
        isinstance(value, dict)
        and set(value) == {"result"}
        and set((info.output or {}).get("properties", ())) == {"result"}
    ):
        value = value["result"]  # how the SDK wraps a result that is no object
    size = len(codec.encode(value))
    if size <= limit:
        return value
    return _cut(value if isinstance(value, str) else codec.encode(value).decode(), limit)


def text_of(answer: types.CallToolResult, limit: int) -> str:
    """Return what an answer says to a reader."""
    return _cut("\n".join(_text(block) for block in answer.content), limit)


def _text(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.mime_type}, {len(block.data)} characters, not kept]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.ResourceLink():
            return f"[{block.name}]({block.uri})"
        case _:
            return f"[{block.type}, not kept]"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]} ... (cut: {len(text):,} characters in all)"
