"""An agent of pydantic-ai that exists already, run as a task: each of its model requests and tool calls is a step.

    agent = Agent("openai:gpt-5", name="clerk")

    @agent.tool_plain(metadata=durable_tool(read_only=True))
    def read(path: str) -> str: ...

    clerk = declare_existing(app, agent)       # a kind: await client.submit(clerk, "tidy up")

What runs between the steps (instructions, validators, history processors) runs on every resume, as in any durable
function. A tool is an effect that is sent once unless its metadata says otherwise; one that pydantic-ai holds back for
an approval waits for a person's yes.
"""

import asyncio
import inspect
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Self, TypeVar, Unpack, cast

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolFailed
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    EventStreamHandlerId,
    JournalCallableOperationBackend,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import Model
from pydantic_core import to_jsonable_python

from outlive.actors import dynamic, services
from outlive.actors.agents import models
from outlive.actors.agents.decisions import Usage
from outlive.actors.agents.foreign import (
    KEY,
    Asked,
    Config,
    code_version,
    function_tools,
    named,
    output_type,
    resolve,
    step_of,
    used,
    with_approval,
)
from outlive.actors.agents.requests import Asking, Request, request_tool
from outlive.actors.agents.spending import Prices, Spending
from outlive.actors.agents.versions import Changes, Version
from outlive.actors.app import App
from outlive.actors.dynamic import DynamicOptions
from outlive.actors.history import OPERATION
from outlive.actors.json_arguments import JsonArguments
from outlive.actors.kind import DeclaredKind
from outlive.actors.places import Branch, branch
from outlive.actors.signature import Declared
from outlive.actors.task import Task, flow_of
from outlive.protocol import codec, ids, keys, steps
from outlive.protocol.arguments import Arguments
from outlive.protocol.budget import Budget
from outlive.protocol.errors import StepFailed
from outlive.protocol.policy import NO_BUDGET
from outlive.protocol.tools import AnyTool, Operation, RetryPolicy, Tool

DepsT = TypeVar("DepsT")
OutputT = TypeVar("OutputT")
_NONE: Final = Arguments("unit", inspect.Signature())
_PAYLOADS: Final = frozenset(
    {
        "tool_return",
        "tool_content_result",
        "tool_failed",
        "model_retry",
        "approval_required",
        "call_deferred",
        "validation_error",
        "run_cancelled",
    }
)
"""What the payload of a recorded tool call may be, in pydantic-ai's words."""


def durable_tool(**options: Unpack[DynamicOptions]) -> dict[str, Any]:
    """Return the metadata that says how a tool of pydantic-ai behaves as a step: the options of ``@app.tool``.

    ``@agent.tool_plain(metadata=durable_tool(idempotent=True, timeout=20))``. Without it a tool is an effect that is
    sent once.
    """
    return {KEY: options}


def operation() -> Operation:
    """Return the operation of the tool that runs here: its key, attempt, deadline and progress.

    Raises:
        RuntimeError: no tool of an agent that runs as a task.
    """
    running = _operation.get()
    if running is None:
        raise RuntimeError("operation() belongs into a tool of an agent that runs as a task: there is none here")
    return running


@dataclass(frozen=True, kw_only=True)
class ExistingOptions:
    """How the requests of an existing agent are made.

    Attributes:
        timeout: seconds for one request to the model.
        retries: how errors of the model that may pass are met.
        on_change: what happens when a task goes on under another model: a person is asked, or it goes on and says so.
        budget: what a task and all that it starts may spend on models; a submit may tighten it.
        prices: US dollars for a million tokens in and out, by model, where they are other than published.
        output_tokens: the most that an answer is taken to need, where ``max_tokens`` of the settings does not say it.
    """

    timeout: float = 300.0
    retries: RetryPolicy = field(default_factory=RetryPolicy)
    on_change: Literal["allow", "pause"] = "pause"
    budget: Budget = NO_BUDGET
    prices: Prices = field(default_factory=dict[str, tuple[float, float]])
    output_tokens: int = 4_096


def declare_existing(
    app: App,
    agent: Agent[DepsT, OutputT],
    *,
    name: str | None = None,
    deps: Any = None,
    title: str | None = None,
    **options: Any,
) -> DeclaredKind[[str], OutputT]:
    """Put an agent into an app, as a kind that takes the goal (the user's prompt) and returns the agent's output.

    Args:
        app: gets the kind.
        agent: as it is; what is added to it later counts.
        name: of the kind; the agent's name if left out.
        deps: what every run of it gets as its dependencies.
        title: what people read; ``{goal}`` stands for the goal.
        options: see `ExistingOptions`.

    Raises:
        RegistrationError: it has no name, its output cannot be stored, or a tool's metadata contradicts itself.
    """
    declared = Declared("agent", name or agent.name or "", object)
    if not declared.name:
        raise declared.refuse('it has no name. Write: Agent(..., name="clerk")')
    try:
        ids.check("name", declared.name)
    except ids.InvalidId as error:
        raise declared.refuse(str(error)) from None
    output = output_type(declared, agent.output_type)
    tools = [step for tool in function_tools(agent) if (step := step_of(declared.name, tool, _nobody)) is not None]
    durability = _Durability(name=declared.name, options=ExistingOptions(**options))

    async def run(task: Task, goal: str) -> OutputT:
        token = _running.set(await _Run.begin(task, durability.options))
        try:
            result = await agent.run(goal, deps=deps, capabilities=[durability])
        finally:
            _running.reset(token)
        return result.output

    goal = inspect.Parameter("goal", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str)
    kind: DeclaredKind[[str], OutputT] = DeclaredKind(
        name=declared.name,
        fn=run,
        arguments=Arguments(declared.name, inspect.Signature([goal])),
        result_type=output,
        code_version=code_version(agent),
        title=title or f"{declared.name}: {{goal}}",
    )
    app.add(*tools, durability.asking(_nobody), kind)
    return kind


async def _nobody(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("an agent's model is asked, and its tools are called, by its task alone")


# --- one run


@dataclass(slots=True)
class _Run:
    """What one incarnation of a task knows of its agent's run: which step each call of the model is."""

    task: Task
    spending: Spending
    changes: Changes
    model: str | None = None  # of the last request
    responses: int = 0
    calls: dict[str, str] = field(default_factory=dict[str, str])  # by the model's id of a call: its place
    approved: set[str] = field(default_factory=set[str])  # calls that a person is asked about before they are made
    taken: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    async def begin(cls, task: Task, options: ExistingOptions) -> Self:
        """Begin, or begin again."""
        flow = flow_of(task)
        spending = Spending(flow.world.budgets, flow.claim, options.budget, options.prices)
        await spending.begin()
        return cls(task, spending, Changes(flow, options.on_change, Version("", "", ""), (), lambda _: ""))

    def place(self, wanted: str) -> str:
        """Return a step id that depends on nothing but what the model said: calls may run side by side."""
        self.taken[wanted] += 1
        count = self.taken[wanted]
        return steps.fit(wanted if count == 1 else f"{wanted}-{count}")

    def answered(self, response: Any) -> None:
        """Give each call of a response a place."""
        self.responses += 1
        calls = [part for part in response["parts"] if part.get("part_kind") == "tool-call"]
        for number, call in enumerate(calls, 1):
            self.calls[call["tool_call_id"]] = f"{self.responses}-{number}"

    async def request(self, asked: Asked, tool: Asking[Any], output_tokens: int) -> tuple[Request[Any], bool]:
        """Return the next request to the model as a step, and whether its answer is recorded."""
        flow, number = flow_of(self.task), self.responses + 1
        place = self.place(f"request-{number}")
        recorded = place in flow.history.done
        begun = self.changes.begun(place) if self.model is None else None
        last = begun.model if begun is not None else self.model
        before = Version(last, "", "") if last is not None else None
        self.changes.now = Version(asked.model, "", "")
        version = await self.changes.settle(number, before, recorded=recorded)
        prompt, most = ("", Usage()) if recorded else asked.measured(output_tokens)
        bound = tool.bind((), {"model": version.model, "prompt": prompt})
        before = Version(before.model, prompt, "") if before is not None else None  # prompts may be made anew each time
        return Request[Any](flow, place, tool, bound, before=before, spending=self.spending, most=most), recorded

    def made_with(self, step: Request[Any], *, recorded: bool) -> str:
        """Return the model of a request that was answered, and remember it."""
        model: str = step.bound["model"]
        intended = step.flow.history.operations.get((step.step_id, OPERATION)) if recorded else None
        if intended is not None and intended.arguments:
            model = codec.decode(intended.arguments)["model"]
        self.model = model
        return model

    async def perform(self, tool: AnyTool, arguments: dict[str, Any]) -> Any:
        """Make a step, on whatever asyncio task the agent runs it: its place is chosen, not counted."""
        here = services.current.get()
        if here is not None:
            here.tools[tool.name] = tool
        token = branch.set(Branch("", asyncio.current_task()))
        try:
            step = self.task.call(tool, **arguments)
        finally:
            branch.reset(token)
        return await step


_running: Final[ContextVar[_Run | None]] = ContextVar("outlive_agent_run", default=None)
_operation: Final[ContextVar[Operation | None]] = ContextVar("outlive_operation", default=None)


class _Steps(JournalCallableOperationBackend[Config]):
    """Makes each unit of an agent's run a step of the task."""

    def __init__(self, durability: "_Durability") -> None:
        config: RoleBasedOperationConfig[Config] = RoleBasedOperationConfig(
            model=None, event=None, capability=None, tool=None, resolve_tool=resolve
        )
        super().__init__(agent_name=durability.name or "", config=config)
        self._durability = durability

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: Config,
    ) -> object:
        """Run one unit as a step, or answer it from the record."""
        run = _running.get()
        assert run is not None, "units are durable within a task only"
        match operation_id:
            case ModelRequestId() | ModelCompactMessagesId():
                return await self._request(run, body, Asked.of(cache_key))
            case ModelCancelSuspendedResponseId():
                return await run.perform(_plain(name, body, run.place(_slug(name)), idempotent=True), {})
            case ToolsetCallToolId():
                return await self._call(run, body, cache_key, config or {})
            case ToolsetValidateToolArgumentsId():
                context = cast("RunContext[Any]", cache_key[2])
                place = run.place(f"check-{_call_place(run, context)}")
                return await run.perform(_plain(name, body, place, read_only=True), {})
            case ToolsetGetToolsId() | ToolsetGetInstructionsId() | EventStreamHandlerId():
                return await run.perform(_plain(name, body, run.place(_slug(name)), read_only=True), {})
            case _:  # of a capability: what it does is not known, so it is sent once
                return await run.perform(_plain(name, body, run.place(_slug(name))), {})

    async def _request(self, run: _Run, body: Callable[[], Awaitable[object]], asked: Asked) -> object:
        async def request(_: Operation, **__: Any) -> Any:
            response = await body()
            return models.without_thinking(response) if isinstance(response, dict) else response

        step, recorded = await run.request(
            asked, self._durability.asking(request), self._durability.options.output_tokens
        )
        response = await step
        model = run.made_with(step, recorded=recorded)
        if isinstance(response, dict) and "parts" in response:
            run.answered(response)
            await step.settle(model, used(response.get("usage") or {}))
        return response

    async def _call(
        self,
        run: _Run,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        options: DynamicOptions,
    ) -> object:
        tool_name, given, context = cast("tuple[str, dict[str, Any], RunContext[Any]]", cache_key[:3])
        if context.tool_call_id in run.approved:
            options = with_approval(options)
        if "title" not in options:
            options = {**options, "title": tool_name}
        arguments = _as_called(context, given)
        tool = dynamic.make(
            named(tool_name, None), f"{self._durability.name}.{tool_name}", _with_operation(body),
            JsonArguments(tool_name, {"properties": dict.fromkeys(arguments, True)}), options,
            step_id=run.place(f"call-{_call_place(run, context)}"),
        )  # fmt: skip
        try:
            result = await run.perform(tool, arguments)
        except StepFailed as failed:
            if failed.failure.error_class == "rejected":
                raise ToolFailed(failed.failure.message) from failed
            raise
        return result if _is_payload(result) else {"result": result, "kind": "tool_return"}


class _Durability(BaseDurabilityCapability[Any]):
    """The engine: what pydantic-ai asks how its units are made durable."""

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Outlive",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        serialization_failure=lambda error: codec.NotStorable("$", str(error)),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=KEY,
    )

    def __init__(self, *, name: str, options: ExistingOptions) -> None:
        super().__init__(name=name)
        self.options = options

    def asking(self, ask: Callable[..., Awaitable[Any]]) -> Asking[Any]:
        """Return the request to the model as a tool that runs `ask`."""
        return request_tool(
            keys.request_name(self.name or ""), ask, {}, result_type=Any, title=f"{self.name} asks its model",
            timeout=self.options.timeout, retries=self.options.retries,
        )  # fmt: skip

    @property
    def in_durable_context(self) -> bool:
        """True within a task."""
        return _running.get() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """Steps of the task that runs."""
        return _Steps(self)

    def get_default_run_id(self) -> str | None:
        """The task's id: the same on every run."""
        run = _running.get()
        return f"{run.task.tenant}/{run.task.task_id}:{run.task.run}" if run is not None else None

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The same on every run."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    def get_wrapper_model(self, model: Model[Any]) -> Model[Any] | None:
        """Wrap nothing; the retries of its provider's SDK are switched off."""
        if self.in_durable_context:
            models.without_retries(model)
        return None

    async def handle_deferred_tool_calls(
        self,
        ctx: RunContext[Any],  # noqa: ARG002  # pydantic-ai gives it
        *,
        requests: DeferredToolRequests,
    ) -> DeferredToolResults | None:
        """Let calls that want an approval go on to their step: there a person is asked."""
        run = _running.get()
        if run is None or not requests.approvals:
            return None
        run.approved.update(call.tool_call_id for call in requests.approvals)
        return DeferredToolResults(approvals={call.tool_call_id: ToolApproved() for call in requests.approvals})


# --- tools and arguments


def _plain(
    name: str, body: Callable[[], Awaitable[object]], place: str, *, read_only: bool = False, idempotent: bool = False
) -> AnyTool:
    return Tool(
        name=name, fn=body, arguments=_NONE, result_type=Any, read_only=read_only, idempotent=idempotent,
        takes_operation=False, is_async=True, title=name, step_id=place,
    )  # fmt: skip


def _with_operation(body: Callable[[], Awaitable[object]]) -> Callable[..., Awaitable[object]]:
    async def call(running: Operation, /, **_arguments: Any) -> object:
        token = _operation.set(running)
        try:
            return await body()
        finally:
            _operation.reset(token)

    return call


def _call_place(run: _Run, context: RunContext[Any]) -> str:
    called = context.tool_call_id or ""
    return run.calls.get(called) or codec.digest(called.encode()).hex()[:12]


def _slug(name: str) -> str:
    return "unit-" + re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def _as_called(context: RunContext[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as the model wrote them: the same on every run, in JSON."""
    for message in reversed(context.messages):
        for part in message.parts if isinstance(message, ModelResponse) else ():
            if isinstance(part, ToolCallPart) and part.tool_call_id == context.tool_call_id:
                return part.args_as_dict()
    return cast("dict[str, Any]", to_jsonable_python(given, fallback=str))


def _is_payload(result: Any) -> bool:
    """True for what pydantic-ai records of a call; a person's word or a reconciler's is the bare result."""
    return isinstance(result, dict) and cast("dict[str, Any]", result).get("kind") in _PAYLOADS
