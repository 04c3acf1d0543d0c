"""Tools: functions that become durable steps. Their flags are checked when they are declared."""

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    NoReturn,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from outlive.actors.context import current
from outlive.actors.signature import Declared, RegistrationError, check_rule, companion, named, read, title_of
from outlive.protocol.arguments import Arguments
from outlive.protocol.bucket import Limit
from outlive.protocol.operations import ErrorClass, Outcome
from outlive.protocol.tools import Durable, Operation, P, R_co, RetryPolicy, Tool, UniqueWithin

_P = ParamSpec("_P")
_R = TypeVar("_R")
EFFECT: Final = (
    "idempotent", "requires_approval", "approval_ttl", "unique", "unique_within", "prepare", "settle", "key_ttl",
    "reconcile",
)  # fmt: skip
"""Options that have a meaning only for tools that touch the world."""

_ONLY_WITH: Final = {
    "approval_ttl": "requires_approval=True", "key_ttl": "idempotent=True", "unique_within": "unique=",
}  # fmt: skip
"""Options that say something about another one."""


class DirectCall(RuntimeError):
    """A tool or kind was called like a plain function: its result would not be durable. The message says what to write."""


class DeclaredTool(Tool[P, R_co]):
    """A tool as ``@app.tool`` returns it. Its decorators add companions, before the app serves.

    Copies made by ``with_options`` have the companions that were there then.
    """

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report a direct call as an error; at run time it says what to write

        def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            raise _direct_call(self.name)

    @overload
    def reconcile(
        self, fn: Callable[Concatenate[Operation, P], Awaitable[Outcome[R_co]]], /
    ) -> Callable[Concatenate[Operation, P], Awaitable[Outcome[R_co]]]: ...
    @overload
    def reconcile(
        self, fn: Callable[Concatenate[Operation, P], Outcome[R_co]], /
    ) -> Callable[Concatenate[Operation, P], Outcome[R_co]]: ...
    @overload
    def reconcile(self, fn: Callable[P, Awaitable[Outcome[R_co]]], /) -> Callable[P, Awaitable[Outcome[R_co]]]: ...
    @overload
    def reconcile(self, fn: Callable[P, Outcome[R_co]], /) -> Callable[P, Outcome[R_co]]: ...
    def reconcile(self, fn: Callable[..., Any], /) -> Any:
        """Say how to find out whether an effect happened whose answer was lost: asked before anything is sent again.

        The function takes the tool's parameters, an `Operation` in front if it wants one (``op.key``,
        ``op.started_at`` of the lost attempt), and returns ``Outcome[R]``. Raises `RegistrationError`.
        """
        shown = f"Outcome[{inspect.formatannotation(self.result_type).replace('NoneType', 'None')}]"
        self._accompany("reconcile", "reconciler", fn, cast("Any", Outcome)[self.result_type], shown)
        return fn

    @overload
    def prepare(
        self, fn: Callable[Concatenate[Operation, P], Awaitable[str]], /
    ) -> Callable[Concatenate[Operation, P], Awaitable[str]]: ...
    @overload
    def prepare(self, fn: Callable[Concatenate[Operation, P], str], /) -> Callable[Concatenate[Operation, P], str]: ...
    @overload
    def prepare(self, fn: Callable[P, Awaitable[str]], /) -> Callable[P, Awaitable[str]]: ...
    @overload
    def prepare(self, fn: Callable[P, str], /) -> Callable[P, str]: ...
    def prepare(self, fn: Callable[..., Any], /) -> Any:
        """Say what would happen, for the person who is asked for a yes. It must change nothing.

        The function takes the tool's parameters, an `Operation` in front if it wants one, and returns a text. Raises
        `RegistrationError`.
        """
        self._accompany("prepare", "preparer", fn, str, "str")
        return fn

    @overload
    def compensate(self, fn: Callable[Concatenate[Operation, P], Awaitable[_R]], /) -> "DeclaredTool[P, _R]": ...
    @overload
    def compensate(self, fn: Callable[Concatenate[Operation, P], _R], /) -> "DeclaredTool[P, _R]": ...
    @overload
    def compensate(self, fn: Callable[P, Awaitable[_R]], /) -> "DeclaredTool[P, _R]": ...
    @overload
    def compensate(self, fn: Callable[P, _R], /) -> "DeclaredTool[P, _R]": ...
    @overload
    def compensate(self, /, **options: "Unpack[ToolOptions]") -> "CompensatorDecorator[P]": ...
    def compensate(self, fn: Callable[..., Any] | None = None, /, **options: "Unpack[ToolOptions]") -> Any:
        """Say how the effect is undone, for ``outlive cancel TASK --compensate``: as ``@app.tool``, with its options.

        The function takes the tool's parameters, an `Operation` in front if it wants one: its ``op.undoes`` has key and
        result of the effect. It is an effect of its own: what follows its lost answer is what it declares
        (``idempotent``, ``@undo.reconcile``), else a person decides. Raises `RegistrationError`.
        """
        if fn is None:
            return CompensatorDecorator(self, options)
        self._check("compensate", "compensator", fn)
        companion(Declared("compensate of tool", self.name, fn), self.arguments)
        if options.get("read_only"):
            raise Declared("compensate of tool", self.name, fn).refuse("what undoes an effect is not read_only")
        if self.arguments.secrets:
            raise Declared("compensate of tool", self.name, fn).refuse(
                f"secrets are not kept, so it could not be called with {', '.join(sorted(self.arguments.secrets))}. "
                "Read the secret inside of the tool, and inside of what undoes it"
            )
        undo = declare(fn, **options)
        undo = dataclasses.replace(undo, arguments=Arguments(undo.name, self.arguments.signature))
        object.__setattr__(self, "compensator", undo)
        return undo

    def _accompany(self, what: str, field_name: str, fn: Callable[..., Any], result: Any, shown: str) -> None:
        self._check(what, field_name, fn)
        declared = Declared(f"{what} of tool", self.name, fn)
        object.__setattr__(self, field_name, companion(declared, self.arguments, result, shown))

    def _check(self, what: str, field_name: str, fn: Callable[..., Any]) -> None:
        declared = Declared(f"{what} of tool", self.name, fn)
        if not inspect.isfunction(inspect.unwrap(fn)):
            raise RegistrationError(f"@{self.name}.{what} wants a function (def or async def), not {fn!r}")
        if self.read_only:
            raise declared.refuse(
                f"{self.name} is read_only: it changes nothing and is simply run again. Remove @{self.name}.{what}"
            )
        if (first := getattr(self, field_name)) is not None:
            raise declared.refuse(f"{self.name} has {first.name} already, from {Declared(what, '', first.fn).place}")


class ToolOptions(TypedDict, total=False):
    """The options of ``@app.tool``; their meaning in full at `outlive.protocol.tools.Tool`.

    Three separate questions: does it touch the world (`read_only`), may the same call be sent again (`idempotent`),
    must a person say yes first (`requires_approval`)? Without any of them it is an effect that is sent once.
    """

    read_only: bool  # changes nothing: repeated freely after a crash; no other flag goes with it
    idempotent: bool  # the same call may be sent again: the remote honours `op.key`, or twice is the same as once
    requires_approval: bool | Callable[..., bool]  # a person must say yes first; or a function of the arguments
    approval_ttl: float  # seconds for which that question stands, 7 days if left out; then it is a no
    unique: Callable[..., str]  # names the business action: the same again is not sent again, whoever asks for it
    unique_within: UniqueWithin  # "tenant" if left out; "task": among the calls of one task
    prepare: Callable[..., str] | Callable[..., Awaitable[str]]  # the same as ``@tool.prepare``
    name: str  # instead of the function's
    title: str  # what people read, for instance "read {path}"
    timeout: float  # seconds for one attempt, 60 if left out; over it, the attempt's outcome is unknown
    settle: (
        float  # seconds after the timeout in which a lost request may still arrive; left out, a "no" is not believed
    )
    key_ttl: float  # seconds for which the remote remembers `op.key`, for ever if left out
    retries: RetryPolicy  # of errors that may pass, 5 tries if left out
    rate_limit: Limit  # calls that the remote allows, counted over all workers; left out: as many as come
    classify: Callable[[BaseException], ErrorClass | None]  # names the class of an exception; None: as for every tool
    durable: Durable  # "before_next": a read-only result is durable before the next step begins


_FIELDS: Final = ToolOptions.__annotations__.keys() - {"name", "title", "prepare"}


@dataclass(frozen=True, slots=True)
class CompensatorDecorator(Generic[_P]):
    """``@tool.compensate(...)``: makes the function that undoes a tool's effect an effect with these options."""

    tool: DeclaredTool[_P, Any]
    options: ToolOptions

    @overload
    def __call__(self, fn: Callable[Concatenate[Operation, _P], Awaitable[_R]], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Operation, _P], _R], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, fn: Callable[_P, Awaitable[_R]], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, fn: Callable[_P, _R], /) -> DeclaredTool[_P, _R]: ...
    def __call__(self, fn: Callable[..., Any], /) -> Any:
        """Declare the function. Raises `RegistrationError`."""
        return self.tool.compensate(fn, **self.options)  # type: ignore[call-overload]  # options and function at once


@dataclass(frozen=True, slots=True)
class ToolDecorator:
    """``@app.tool`` and ``@app.tool(...)``: makes a tool of a function, sync or async.

    A first parameter annotated with `Operation` is filled in and is no part of what callers pass.
    """

    add: Callable[[DeclaredTool[..., Any]], None]
    options: ToolOptions = field(default_factory=ToolOptions)

    @overload
    def __call__(self, fn: Callable[Concatenate[Operation, _P], Awaitable[_R]], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Operation, _P], _R], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, fn: Callable[_P, Awaitable[_R]], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, fn: Callable[_P, _R], /) -> DeclaredTool[_P, _R]: ...
    @overload
    def __call__(self, /, **options: Unpack[ToolOptions]) -> "ToolDecorator": ...
    def __call__(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[ToolOptions]) -> Any:
        """Declare a function, or return the decorator with these options. Raises `RegistrationError`."""
        if fn is None:
            return ToolDecorator(self.add, {**self.options, **options})
        tool = declare(fn, **self.options)
        self.add(tool)
        return tool


def declare(fn: Callable[..., Any], **options: Unpack[ToolOptions]) -> DeclaredTool[..., Any]:
    """Make a tool of a function without putting it into an app; raises `RegistrationError`."""
    declared = named("tool", options.get("name"), fn)
    check_flags(declared, options, known=ToolOptions.__annotations__)
    limit: Any = options.get("rate_limit")
    if not isinstance(limit, Limit | None):
        raise declared.refuse(f"rate_limit={limit!r} is no limit. Write: rate_limit=Limit(calls=10, per=1)")
    signature = read(declared, Operation)
    rule, unique = options.get("requires_approval"), options.get("unique")
    prepare: Any = options.get("prepare")
    if callable(rule):
        check_rule(declared, "requires_approval", rule, signature.arguments)
    if callable(unique):
        check_rule(declared, "unique", unique, signature.arguments, str)
    try:
        tool: DeclaredTool[..., Any] = DeclaredTool(
            name=declared.name,
            fn=fn,
            arguments=signature.arguments,
            result_type=signature.result_type,
            takes_operation=signature.leading,
            is_async=signature.is_async,
            title=title_of(declared, options.get("title"), signature.arguments),
            **fields(options),
        )
    except ValueError as error:
        raise declared.refuse(str(error)) from None
    if prepare is not None:
        tool.prepare(prepare)
    return tool


def fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tool that options name; what is left out is as `outlive.protocol.tools.Tool` has it."""
    named = {option: value for option, value in options.items() if option in _FIELDS and value is not None}
    return {"read_only": False, "idempotent": False, **named}


def check_flags(declared: Declared, options: Mapping[str, Any], *, known: Iterable[str]) -> None:
    """Refuse unknown options, and those that contradict each other."""
    if unknown := sorted(options.keys() - set(known)):
        raise declared.refuse(f"has no option {unknown[0]!r}. It may have: {', '.join(sorted(known))}")
    given = {flag: options[flag] for flag in EFFECT if options.get(flag) is not None and options[flag] is not False}
    if options.get("read_only") and given:
        flag, value = next(iter(given.items()))
        raise declared.refuse(
            f"read_only=True says that it changes nothing, so {flag}={getattr(value, '__name__', value)} has no "
            "meaning. Leave one of them out"
        )
    for flag, wanted in _ONLY_WITH.items():
        if flag in given and wanted.partition("=")[0] not in given:
            raise declared.refuse(f"{flag}={given[flag]} has no meaning without {wanted}. Add it, or leave {flag} out")


def _direct_call(name: str) -> DirectCall:
    task = current.get()
    if task is not None:
        return DirectCall(
            f"{name}() was called directly inside task {task.kind!r}: its result would not survive a crash. "
            f"Write: await task.call({name}, ...). In a test: {name}.fn(...)"
        )
    return DirectCall(
        f"{name}() is a tool and was called directly, outside a task. In a task write: await task.call({name}, ...). "
        f"In a test, or inside another tool: {name}.fn(...)"
    )
