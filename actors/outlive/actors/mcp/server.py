"""`MCPServer`: a server of the Model Context Protocol, declared once, connected by each worker, called by durable steps.

files = MCPServer("files", command=["npx", "-y", "@modelcontextprotocol/server-filesystem", "."], trusted=True)
crm = MCPServer("crm", url="https://crm.example/mcp", headers={"Authorization": f"Bearer {token}"})

@app.task
async def tidy(task: Task, path: str) -> str:
    tools = await files.tools(task)                          # a recorded step: the same tools on every run
    return await task.call(tools.typed("read_file", str), path=path)
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from outlive.actors import services
from outlive.actors.dynamic import DynamicOptions
from outlive.actors.mcp.link import CONNECT, Link, Session, Target
from outlive.actors.mcp.toolset import (
    SEPARATOR,
    CallFailed,
    MCPTools,
    ToolInfo,
    differences,
    options_of,
    result_of,
    text_of,
)
from outlive.actors.signature import RegistrationError
from outlive.protocol import codec, ids
from outlive.protocol.arguments import Arguments
from outlive.protocol.errors import ToolChanged
from outlive.protocol.tools import TIMEOUT, Operation, Tool

if TYPE_CHECKING:
    from outlive.actors.task import Task

LIMIT: Final = 100_000
"""Characters of a result that are kept unless the server says otherwise."""

_NONE: Final = Arguments("tools", inspect.Signature())


class MCPServer:
    """A server as a set of tools.

    Each worker has at most one connection to it: opened at its first use, opened again (after a growing pause) when the
    server has ended it, closed with the worker. A call that was in flight when it ended is *unknown*, not failed,
    unless it is known that it had not left. Our idempotency key goes with every call, in ``_meta``.

    Hints of a server that is not `trusted` loosen nothing: each of its tools is an effect that is sent once, after a
    person's yes. Of a trusted one ``readOnlyHint`` makes it read-only, ``idempotentHint`` idempotent, and only
    ``destructiveHint: false`` spares the question. What `tools` says of a tool counts most.
    """

    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str = "",
        headers: Mapping[str, str] | None = None,
        trusted: bool = False,
        tools: Mapping[str, DynamicOptions] | None = None,
        include: Collection[str] | None = None,
        exclude: Collection[str] = (),
        timeout: float = TIMEOUT,
        limit: int = LIMIT,
        changed: Literal["pause", "allow"] = "pause",
    ) -> None:
        """Declare a server; nothing is started.

        Args:
            name: in front of its tools' names: ``files__read_file``.
            command: starts it; it speaks on its standard input and output. Its standard error goes to the log.
            env: variables of its process, besides PATH, HOME and the like: it sees no others.
            cwd: the folder that it runs in.
            url: or its address, for the streamable HTTP transport.
            headers: of every request there.
            trusted: its hints are believed.
            tools: by the server's names: what counts more than a hint (the options of ``@app.tool``, and ``reconcile``).
            include: the tools to take; all if left out.
            exclude: tools to leave.
            timeout: seconds for one call, where `tools` says nothing else.
            limit: characters of a result that are kept.
            changed: what follows when a tool is no longer what a task knows it as: the task pauses, or goes on.

        Raises:
            RegistrationError: not exactly one of `command` and `url`, or a name that cannot be one.
        """
        if bool(command) == bool(url):
            raise RegistrationError(f'MCP server {name!r}: give either command=["program", ...] or url="https://..."')
        try:
            ids.check("name", name)
        except ids.InvalidId as error:
            raise RegistrationError(f"MCP server {name!r}: {error}") from None
        if SEPARATOR in name:
            raise RegistrationError(f"MCP server {name!r}: {SEPARATOR} stands between a server's name and a tool's")
        self.name = name
        self.trusted: Final = trusted
        self._target = Target(
            name=name, command=tuple(command), env=dict(env or {}), cwd=cwd, url=url, headers=dict(headers or {})
        )
        self._overrides = dict(tools or {})
        self._include = set(include) if include is not None else None
        self._exclude = set(exclude)
        self._timeout = timeout
        self._limit = limit
        self._changed = changed
        self._listing: Tool[[], list[ToolInfo]] = Tool(
            name=name, fn=self._list, arguments=_NONE, result_type=list[ToolInfo], read_only=True, idempotent=False,
            takes_operation=False, is_async=True, title=f"tools of {name}", timeout=timeout,
        )  # fmt: skip

    def __repr__(self) -> str:
        return f"MCPServer({self.name!r})"

    def tools(self, task: "Task") -> Awaitable[MCPTools]:
        """Return the server's tools, as a step: what it says of them is recorded, and is the same on every run.

        Raises:
            StepFailed: it could not be reached.
            RegistrationError: options name a tool that it does not have, or contradict each other.
        """
        return self._tools(task.call(self._listing))

    @property
    def unsettled(self) -> bool:
        """True when it is not trusted, and has tools of which the app says nothing: a lost answer of theirs is a person's."""
        return not self.trusted and (self._include is None or bool(self._include - self._overrides.keys()))

    def describe(self) -> str:
        """Return a line on how its tools are called, and what follows a lost answer. It is not asked for them."""
        said = [f"{tool} ({', '.join(sorted(options))})" for tool, options in sorted(self._overrides.items())]
        as_said = f"; as declared: {', '.join(said)}" if said else ""
        if self.trusted:
            return f"{self.name}: MCP server, trusted: each tool as its hints say{as_said}"
        rest = (
            "WARNING each tool: your yes, then once; lost answer -> a person decides"
            if self.unsettled
            else "not trusted"
        )
        return f"{self.name}: MCP server, {rest}{as_said}"

    async def _tools(self, listing: Awaitable[list[ToolInfo]]) -> MCPTools:
        infos = await listing
        known = {info.name for info in infos}
        for name in sorted({*self._overrides, *(self._include or ())} - known - self._exclude):
            raise RegistrationError(
                f"MCP server {self.name!r} has no tool {name!r}. It has: {', '.join(sorted(known)) or 'none'}"
            )
        found = MCPTools(self.name, infos, self._calling, self._verifying, self._options)
        here = services.current.get()
        if here is not None:
            here.tools.update({tool.name: tool for tool in found.values()})
        return found

    async def _list(self) -> list[ToolInfo]:
        session = await self._session(self._timeout)
        infos = await session.infos()
        wanted = (infos.keys() if self._include is None else infos.keys() & self._include) - self._exclude
        return [info for name, info in infos.items() if name in wanted]

    def _options(self, info: ToolInfo) -> DynamicOptions:
        given: DynamicOptions = {"timeout": self._timeout, **self._overrides.get(info.name, DynamicOptions())}
        return options_of(info, given, trusted=self.trusted)

    def _calling(self, info: ToolInfo, result: Any) -> Callable[..., Awaitable[Any]]:
        timeout = self._options(info).get("timeout", self._timeout)

        async def call(op: Operation, /, **arguments: Any) -> Any:
            session = await self._session(timeout)
            await self._compare(session, info)
            answer = await session.call(info.name, arguments, op)
            if answer.is_error:
                raise CallFailed(text_of(answer, self._limit))
            value = result_of(answer, info, self._limit)
            return value if result is Any else codec.unpack(codec.encode(value), result)

        return call

    def _verifying(self, info: ToolInfo) -> Callable[[], Awaitable[None]]:
        async def verify() -> None:
            await self._compare(await self._session(self._timeout), info)

        return verify

    async def _compare(self, session: Session, info: ToolInfo) -> None:
        """Raise `ToolChanged` where the server says other things of a tool than are recorded."""
        if self._changed == "allow":
            return
        now = (await session.infos()).get(info.name)
        if now is None or now.digest != info.digest:
            raise ToolChanged(
                f"The tool {info.name} of MCP server {self.name} is not what it was when this task began: "
                f"{differences(info, now)}. Nothing was called. Bring the old server back, or let tasks go on with "
                f'changed tools (MCPServer(..., changed="allow")), then resume; or cancel'
            )

    async def _session(self, timeout: float) -> Session:  # noqa: ASYNC109  # what the call has, not this
        here = services.current.get()
        if here is None:
            raise RuntimeError(f"the tools of {self!r} are called by tasks: there is no worker here")
        link = here.shared(self, lambda: Link(self._target, here))
        return await link.session(min(CONNECT, 0.8 * timeout))
