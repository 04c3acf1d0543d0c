"""What users declare, as data: tools, kinds of tasks, signals.

`Tool` and `Kind` know how their function is called and stored, nothing of how it is run: any service may import them,
and a client submits a `Kind` with its types checked.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, Literal, ParamSpec, Self, TypeVar

from outlive.protocol import codec, ids, keys, steps
from outlive.protocol.arguments import Arguments
from outlive.protocol.bucket import Limit
from outlive.protocol.budget import Budget
from outlive.protocol.operations import ErrorClass

P = ParamSpec("P")
T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)

Durable = Literal["", "before_next"]
"""When a read-only result is durable: with the next commit, or before the next step begins."""

TIMEOUT: Final = 60.0
"""Seconds a tool may take unless it says otherwise."""

UniqueWithin = Literal["tenant", "task"]
"""Among which tasks `Tool.unique` names one action: all of the tenant, or each on its own."""

UNIQUE_LENGTH: Final = 200
"""Bytes of an action's name that are kept as they are; a longer one is known by its digest."""

APPROVAL_TTL: Final = 7 * 86_400.0
"""Seconds for which a question for a yes stands unless the tool says otherwise; silence is a no."""

TITLE_LENGTH: Final = 200
"""Characters of a title with its arguments."""


def _unreported(message: str, done: float | None, total: float | None) -> None:
    """Drop the progress of an operation that nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The effect that a compensator undoes.

    Attributes:
        key: the idempotency key under which it was made.
        result: what the tool returned, decoded by its type; None where that is lost.
        started_at: when its (last) attempt began.
    """

    key: str
    result: Any
    started_at: datetime

    @property
    def uuid(self) -> str:
        """The key as a UUID (version 5), as the tool had it."""
        return keys.operation_uuid(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One side effect about to be made, handed to tools whose first parameter is annotated with it.

    Attributes:
        key: the idempotency key, the same on every attempt and after every crash (at most 200 characters).
        started_at: when the intent became durable (the database's time).
        deadline: when the attempt times out.
        attempt: 1 for the first try.
        report: where `progress` goes; may be called from any thread.
        original: see `undoes`.
    """

    key: str
    started_at: datetime
    deadline: datetime
    attempt: int = 1
    report: Callable[[str, float | None, float | None], None] = _unreported
    original: Original | None = None

    @property
    def undoes(self) -> Original:
        """In a compensator (its reconciler, its preview): the effect that is to be undone. Elsewhere `LookupError`."""
        if self.original is None:
            raise LookupError("op.undoes is there only where a compensator runs in a cancel: this call undoes nothing")
        return self.original

    @property
    def uuid(self) -> str:
        """The key as a UUID (version 5), for remotes that want one."""
        return keys.operation_uuid(self.key)

    def progress(self, message: str, *, done: float | None = None, total: float | None = None) -> None:
        """Tell watching people how far the tool is, at most twice a second; never waits. From any thread."""
        self.report(message, done, total)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how late a step is tried again after an error that may pass.

    Attributes:
        max_attempts: how many tries in all; 1 = never again.
        base: seconds before the second try; doubles with each (full jitter: anything from 0 to that is waited).
        cap: the longest wait in seconds that we choose ourselves.
        max_elapsed: seconds from the first try after which no further one begins; None = as long as it takes.
        max_wait: the longest wait in seconds that a remote may ask for; above it the task pauses as throttled.
    """

    max_attempts: int = 5
    base: float = 0.5
    cap: float = 60.0
    max_elapsed: float | None = None
    max_wait: float = 3600.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.base < 0 or self.cap < self.base:
            raise ValueError(f"{self} makes no sense: max_attempts >= 1 and 0 <= base <= cap")
        if (self.max_elapsed or 0) < 0 or self.max_wait < 0:
            raise ValueError(f"{self} makes no sense: max_elapsed and max_wait are seconds, 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """A function beside a tool that takes the same arguments: called by name, with `Tool.whole`.

    Attributes:
        name: of the function, for messages.
        fn: the function as written.
        takes_operation: it wants the `Operation` first.
        is_async: it returns an awaitable; otherwise it runs in a thread.
    """

    name: str
    fn: Callable[..., Any]
    takes_operation: bool
    is_async: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tool(Generic[P, R_co]):
    """A function that touches the world or reads it, called by ``task.call(tool, ...)``.

    Without a flag it is an effect that is sent once: when its answer is lost, it is not simply sent again. What happens
    then is `outlive.protocol.paths`.

    Attributes:
        name: unique within the app, stored with every step.
        fn: the function as written: sync or async, an operation in front where `takes_operation`.
        arguments: how it is called and how its arguments are stored.
        result_type: what it returns (awaited).
        read_only: changes nothing, so it is repeated freely after a crash.
        idempotent: the same call may be sent again with the same key.
        requires_approval: a person must say yes before it is sent; or a function of the arguments that says so.
        approval_ttl: seconds for which that question stands; then it counts as a no.
        unique: names the business action by the arguments, for instance an order's number: the same name again, in
            another step or task, has the first one's result and sends nothing; with other arguments a person is asked.
        unique_within: see `UniqueWithin`.
        takes_operation: `fn` wants an `Operation` first.
        is_async: `fn` returns an awaitable; otherwise it runs in a thread.
        title: what people read; ``{parameter}`` stands for an argument.
        timeout: seconds for one attempt.
        settle: seconds after the timeout in which a lost request may still arrive; only later a reconciler's "it did
            not happen" is believed. None = unknown: such an answer goes to a person.
        key_ttl: seconds for which the remote remembers a key; None = for ever.
        retries: how an error that may pass is met.
        rate_limit: how many calls its remote allows, counted over all workers, per tenant; None: as many as come.
        classify: names the class of an exception that `fn` raised; None leaves it to what every tool uses.
        durable: see `Durable`.
        verify: looked at before a person is asked about a call; raises `errors.ToolChanged` where the tool is no longer
            what the task knows it as. Any other error is left to the call.
        step_id: a chosen step id; None = counted.
        reconciler: finds out whether an effect happened whose answer was lost; returns an `operations.Outcome`.
        preparer: says what would happen, for the person who is asked; returns a text.
        compensator: undoes an effect when its task is cancelled with ``compensate``: a tool with the same arguments.
    """

    name: str
    fn: Callable[..., Any]
    arguments: Arguments
    result_type: Any
    read_only: bool
    idempotent: bool
    requires_approval: bool | Callable[..., bool] = False
    approval_ttl: float = APPROVAL_TTL
    unique: Callable[..., str] | None = None
    unique_within: UniqueWithin = "tenant"
    takes_operation: bool
    is_async: bool
    title: str
    timeout: float = TIMEOUT
    settle: float | None = None
    key_ttl: float | None = None
    retries: RetryPolicy = RetryPolicy()
    rate_limit: Limit | None = None
    classify: Callable[[BaseException], ErrorClass | None] | None = None
    durable: Durable = ""
    verify: Callable[[], Awaitable[None]] | None = None
    step_id: str | None = None
    reconciler: Companion | None = None
    preparer: Companion | None = None
    compensator: "Tool[P, Any] | None" = None

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout of {self.name} is {self.timeout}: give seconds above 0")
        if (self.settle or 0) < 0 or (self.key_ttl or 0) < 0:
            raise ValueError(f"settle and key_ttl of {self.name} are seconds: give 0 or more")
        if not self.approval_ttl > 0:
            raise ValueError(f"approval_ttl of {self.name} is {self.approval_ttl}: give seconds above 0")
        if self.durable not in ("", "before_next"):
            raise ValueError(f'durable of {self.name} is {self.durable!r}: give "before_next" or leave it out')
        if self.unique_within not in ("tenant", "task"):
            raise ValueError(f'unique_within of {self.name} is {self.unique_within!r}: give "tenant" or "task"')
        if self.step_id is not None:
            steps.check_chosen(self.step_id)

    def with_options(
        self,
        *,
        step_id: str | None = None,
        timeout: float | None = None,
        durable: Durable | None = None,
        title: str | None = None,
        retries: RetryPolicy | None = None,
    ) -> Self:
        """Return a copy with other options; what is left out stays. Raises `ValueError` for a bad one."""
        return _copy(self, step_id=step_id, timeout=timeout, durable=durable, title=title, retries=retries)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name without those equal to their default, or raise `TypeError`."""
        return self.arguments.bind(args, kwargs)

    def whole(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return bound arguments with the defaults that binding leaves out: what a `Companion` is called with."""
        return {**self.arguments.defaults, **bound}

    def needs_approval(self, bound: Mapping[str, Any]) -> bool:
        """Say whether a person must agree to these arguments. Raises what a function of the author's raises."""
        wanted = self.requires_approval
        return bool(wanted(**self.whole(bound))) if callable(wanted) else wanted

    def action(self, bound: Mapping[str, Any]) -> str | None:
        """Return the name of the business action that these arguments are; None: it has none.

        Raises:
            TypeError: `unique` returned no text; and what that function raises.
        """
        if self.unique is None:
            return None
        name: Any = self.unique(**self.whole(bound))
        if not isinstance(name, str) or not name:
            raise TypeError(f"unique of {self.name} returned {name!r}: return a text that names the action")
        raw = name.encode("utf-8", "surrogatepass")
        plain = len(raw) <= UNIQUE_LENGTH and name.isprintable()
        return name if plain else f"#{codec.digest(raw).hex()}"

    def encode_arguments(self, bound: Mapping[str, Any]) -> bytes:
        """Return bound arguments as stored, or raise `codec.NotStorable`."""
        return self.arguments.encode(bound)

    def decode_arguments(self, body: bytes) -> dict[str, Any]:
        """Return the bound arguments that were stored."""
        return self.arguments.decode(body)

    def digest(self, encoded: bytes) -> bytes:
        """Return the digest by which a step is recognised: name and encoded arguments (16 bytes)."""
        return self.arguments.digest(encoded)

    def describe(self, bound: Mapping[str, Any]) -> str:
        """Return the title for people, with these arguments in it."""
        return describe(self.title, self.arguments, bound)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, as a model sees it."""
        return self.arguments.schema


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind(Generic[P, R_co]):
    """The code that runs a task: a durable function, started by ``client.submit(kind, ...)``.

    Attributes:
        name: unique within the app, stored with every task and known on the wire.
        fn: the coroutine function as written, the task in front.
        arguments: how its input is given and stored.
        result_type: what it returns.
        code_version: hex digest of its source.
        title: what people read; ``{parameter}`` stands for a part of the input.
        task_id: a chosen id of the next task; None = made up.
        priority: -100 to 100, higher first.
        labels: names for finding the task again.
        command_id: the dedup id of the submit; None = made up.
        plans: its function takes plans that people have changed (an agent's does).
        requires_approval: True: every effect of the next task waits for a yes; or names of tools that do. It may only
            add to the tools' own rules.
        budget: what the next task and all that it starts may spend on models; it may only tighten an agent's own.
    """

    name: str
    fn: Callable[..., Any]
    arguments: Arguments
    result_type: Any
    code_version: str
    title: str
    task_id: str | None = None
    priority: int = 0
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    command_id: str | None = None
    plans: bool = False
    requires_approval: bool | Sequence[str] = False
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if not -100 <= self.priority <= 100:
            raise ValueError(f"priority of {self.name} is {self.priority}: give -100 to 100, higher first")
        if self.task_id is not None:
            ids.check("task_id", self.task_id)
        if self.command_id is not None:
            ids.check("command_id", self.command_id)
        if isinstance(self.requires_approval, str):
            raise TypeError(f"requires_approval={self.requires_approval!r}: give True, or a list of names of tools")

    def with_options(
        self,
        *,
        task_id: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
        command_id: str | None = None,
        requires_approval: bool | Sequence[str] | None = None,
        budget: Budget | None = None,
    ) -> Self:
        """Return a copy with other options; what is left out stays. Raises `ids.InvalidId` or `ValueError`."""
        return _copy(
            self, task_id=task_id, priority=priority, labels=labels, command_id=command_id,
            requires_approval=requires_approval, budget=budget,
        )  # fmt: skip

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input by name without what equals its default, or raise `TypeError`."""
        return self.arguments.bind(args, kwargs)

    def encode_input(self, bound: Mapping[str, Any]) -> bytes:
        """Return a bound input as stored, or raise `codec.NotStorable`."""
        return self.arguments.encode(bound)

    def decode_input(self, body: bytes) -> dict[str, Any]:
        """Return the bound input that was stored or sent by a stranger."""
        return self.arguments.decode(body)

    def digest(self, encoded: bytes) -> bytes:
        """Return the digest by which a step that spawns this kind is recognised (16 bytes)."""
        return self.arguments.digest(encoded)

    def describe(self, bound: Mapping[str, Any]) -> str:
        """Return the title for people, with this input in it."""
        return describe(self.title, self.arguments, bound)

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.arguments.schema


@dataclass(frozen=True, slots=True)
class Signal(Generic[T]):
    """A value that a task waits for by ``task.wait_for(signal)`` and that others send.

    Attributes:
        name: what the command ``signal`` names.
        type: the type of the value.
    """

    name: str
    type: Any

    def __post_init__(self) -> None:
        ids.check("signal", self.name)
        if steps.is_answer(self.name):
            raise ids.InvalidId(f"signal {self.name!r} is taken: {steps.ANSWER}... are the answers to task.ask")

    def encode(self, value: T) -> bytes:
        """Return the value as sent, or raise `codec.NotStorable`."""
        return codec.pack(value, self.type)[0]

    def decode(self, body: bytes) -> T:
        """Return the value that was sent, or raise `codec.NotStorable` when it does not fit the type."""
        value: T = codec.unpack(body, self.type)
        return value


AnyTool = Tool[..., Any]
AnyKind = Kind[..., Any]


def describe(title: str, arguments: Arguments, bound: Mapping[str, Any]) -> str:
    """Return a title with ``{parameter}`` replaced by arguments and defaults, at most 200 characters.

    A title that cannot be filled in is returned as it is: it must not fail a step.
    """
    if "{" not in title:
        return title
    try:
        text = title.format_map(arguments.public(bound))
    except Exception:  # noqa: BLE001  # a user's __format__
        return title
    return text if len(text) <= TITLE_LENGTH else text[: TITLE_LENGTH - 3] + "..."


_Spec = TypeVar("_Spec", bound=Tool[..., Any] | Kind[..., Any])


def _copy(spec: _Spec, **options: Any) -> _Spec:
    return dataclasses.replace(spec, **{name: value for name, value in options.items() if value is not None})
