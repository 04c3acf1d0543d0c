"""The app: what a worker can run, declared by decorators."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from outlive.actors.kind import DeclaredKind, KindDecorator
from outlive.actors.signature import Declared, RegistrationError
from outlive.actors.tool import ToolDecorator
from outlive.protocol import codec, ids
from outlive.protocol.tools import AnyKind, AnyTool, Kind, Signal, Tool

if TYPE_CHECKING:
    from pydantic_ai import Agent

    from outlive.actors.agents.agent import Toolset

T = TypeVar("T")


class App:
    """A registry of tools, kinds and signals under a name.

    Attributes:
        name: for people, in logs and messages.
        tool: the decorator ``@app.tool``, see `ToolDecorator` and its options.
        task: the decorator ``@app.task``, see `KindDecorator`.
    """

    def __init__(self, name: str) -> None:
        self.name = ids.check("app", name)
        self._tools: dict[str, AnyTool] = {}
        self._kinds: dict[str, DeclaredKind[..., Any]] = {}
        self._signals: dict[str, Signal[Any]] = {}
        self._toolsets: dict[str, Toolset] = {}
        self.tool = ToolDecorator(lambda tool: self._add("tool", self._tools, tool))
        self.task = KindDecorator(lambda kind: self._add("task", self._kinds, kind))

    @property
    def tools(self) -> Mapping[str, AnyTool]:
        """The tools by name, read-only."""
        return MappingProxyType(self._tools)

    @property
    def kinds(self) -> Mapping[str, DeclaredKind[..., Any]]:
        """The kinds by name, read-only."""
        return MappingProxyType(self._kinds)

    @property
    def signals(self) -> Mapping[str, Signal[Any]]:
        """The signals by name, read-only."""
        return MappingProxyType(self._signals)

    @property
    def toolsets(self) -> "Mapping[str, Toolset]":
        """The MCP servers of its agents by name, read-only: their tools are known when a task begins."""
        return MappingProxyType(self._toolsets)

    @overload
    def signal(self, name: str, value_type: type[T]) -> Signal[T]: ...
    @overload
    def signal(self, name: str, value_type: Any) -> Signal[Any]: ...
    def signal(self, name: str, value_type: Any) -> Signal[Any]:
        """Declare a signal whose values have a type; declaring the same again is the same.

        Raises:
            RegistrationError: values of that type cannot be stored, or the name has another type already.
        """
        signal: Signal[Any] = Signal(name, value_type)
        try:
            codec.check_type(value_type)
        except codec.NotStorable as error:
            raise RegistrationError(f"signal {name!r}: {error.why}") from None
        if self._signals.setdefault(name, signal) != signal:
            raise RegistrationError(
                f"signal {name!r} of app {self.name!r} has the type {self._signals[name].type} already. "
                "Choose another name"
            )
        return signal

    def include(self, other: "App") -> None:
        """Take over what another app has declared so far. Raises `RegistrationError` when a name is taken."""
        for tool in other.tools.values():
            self._add("tool", self._tools, tool)
        for kind in other.kinds.values():
            self._add("task", self._kinds, kind)
        for signal in other.signals.values():
            self.signal(signal.name, signal.type)
        self._toolsets.update(other.toolsets)

    @overload
    def agent(
        self,
        agent: str,
        *,
        model: Any,
        instructions: str = "",
        tools: "Sequence[AnyTool | AnyKind | Toolset]" = (),
        output: type[T],
        **options: Any,
    ) -> DeclaredKind[[str], T]: ...
    @overload
    def agent(
        self,
        agent: str,
        *,
        model: Any,
        instructions: str = "",
        tools: "Sequence[AnyTool | AnyKind | Toolset]" = (),
        output: Any = str,
        **options: Any,
    ) -> DeclaredKind[[str], Any]: ...
    @overload
    def agent(self, agent: "Agent[Any, T]", **options: Any) -> DeclaredKind[[str], T]: ...
    def agent(self, agent: Any, **options: Any) -> DeclaredKind[[str], Any]:
        """Declare an agent: a kind that takes a ``goal``; the model decides each next step.

        Args:
            agent: the name of the kind; or an agent of pydantic-ai as it is, whose requests and tool calls then
                are steps (options as for `outlive.actors.agents.existing.declare_existing`).
            options: ``model``: ``provider:name`` or a model of pydantic-ai. ``instructions``: what the model is told
                besides the rules of every agent. ``tools``: what it may call: tools of this app or of others,
                kinds, which run as child tasks, and MCP servers. ``output``: the type of the result. The others are the attributes
                of `outlive.actors.agents.Agent`: mode, settings, context_tokens, plans, on_change, ...

        Raises:
            RegistrationError: pydantic-ai is not installed, a name is taken, the output cannot be stored.
        """
        from outlive.actors import agents  # noqa: PLC0415  # needs an extra

        if not isinstance(agent, str):
            from outlive.actors.agents.existing import declare_existing  # noqa: PLC0415  # the same

            return declare_existing(self, agent, **options)
        return agents.put(self, agent, **options)

    def add(self, *specs: "AnyTool | AnyKind | Toolset") -> None:
        """Put what was made elsewhere into the app. Raises `RegistrationError` when the name of a tool or kind is taken."""
        for spec in specs:
            if not isinstance(spec, Tool | Kind):
                self._toolsets[spec.name] = spec
                continue
            what, registry = ("task", self._kinds) if isinstance(spec, Kind) else ("tool", self._tools)
            self._add(what, registry, spec)

    async def run(self) -> None:
        """Serve this app's tasks until stopped: a worker with the settings of the environment (``OUTLIVE_*``)."""
        import structlog  # noqa: PLC0415  # a declaring module needs no logs

        from outlive.actors import logging  # noqa: PLC0415  # the same
        from outlive.actors.worker import Worker  # noqa: PLC0415  # and no servers
        from outlive.infra.settings import Settings  # noqa: PLC0415  # the same

        if not structlog.is_configured():
            logging.configure()
        await Worker(self, Settings.load()).run()

    def _add(self, what: str, registry: dict[str, Any], spec: Any) -> None:
        first = registry.setdefault(spec.name, spec)
        if first is not spec:
            raise Declared(what, spec.name, spec.fn).refuse(
                f"app {self.name!r} has this name already, from {Declared(what, first.name, first.fn).place}. "
                f'Choose another one: @app.{what}(name="...")'
            )
