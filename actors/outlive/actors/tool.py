"""Tools: functions that become durable steps. Their flags are checked when they are declared."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, overload

from outlive.actors.context import current
from outlive.actors.signature import Declared, named, read, title_of
from outlive.protocol.tools import TIMEOUT, Durable, Operation, P, R_co, RetryPolicy, Tool

_F = TypeVar("_F", bound=Callable[..., Any])
_P = ParamSpec("_P")
_R = TypeVar("_R")


class DirectCall(RuntimeError):
    """A tool or kind was called like a plain function: its result would not be durable. The message says what to write."""


class DeclaredTool(Tool[P, R_co]):
    """A tool as ``@app.tool`` returns it."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report a direct call as an error; at run time it says what to write

        def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            raise _direct_call(self.name)

    def reconcile(self, fn: _F) -> _F:
        """Say how to find out whether a lost effect happened. Not in this version: raises `RegistrationError`."""
        raise Declared("reconcile of tool", self.name, fn).refuse(
            "reconcile is not supported in this version, whose tools may all be repeated: a read-only tool is run "
            "again, an idempotent one is sent again with the same key, and nothing is asked. "
            f"Remove @{self.name}.reconcile"
        )


class ToolOptions(TypedDict, total=False):
    """The options of ``@app.tool``; their meaning in full at `outlive.protocol.tools.Tool`.

    A tool is either read_only or idempotent in this version; everything else is refused.
    """

    read_only: bool  # changes nothing: repeated freely after a crash
    idempotent: bool  # the same call may be sent again: the remote honours `op.key`, or twice is the same as once
    requires_approval: bool | Callable[..., bool]  # not in this version
    name: str  # instead of the function's
    title: str  # what people read, for instance "read {path}"
    timeout: float  # seconds for one attempt, 60 if left out; over it, the attempt's outcome is unknown
    settle: float  # seconds after the timeout in which a lost request may still arrive
    key_ttl: float  # seconds for which the remote remembers `op.key`, for ever if left out
    retries: RetryPolicy  # of errors that may pass, 5 tries if left out
    durable: Durable  # "before_next": a read-only result is durable before the next step begins


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


def declare(
    fn: Callable[..., Any],
    *,
    name: str | None = None,
    title: str | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    requires_approval: bool | Callable[..., bool] = False,
    timeout: float = TIMEOUT,
    settle: float | None = None,
    key_ttl: float | None = None,
    retries: RetryPolicy | None = None,
    durable: Durable = "",
) -> DeclaredTool[..., Any]:
    """Make a tool of a function without putting it into an app; raises `RegistrationError`."""
    declared = named("tool", name, fn)
    effect = {"idempotent": idempotent, "requires_approval": requires_approval, "settle": settle, "key_ttl": key_ttl}
    _check_flags(declared, read_only=read_only, effect={flag: value for flag, value in effect.items() if value})
    signature = read(declared, Operation)
    try:
        return DeclaredTool(
            name=declared.name,
            fn=fn,
            arguments=signature.arguments,
            result_type=signature.result_type,
            read_only=read_only,
            idempotent=idempotent,
            takes_operation=signature.leading,
            is_async=signature.is_async,
            title=title_of(declared, title, signature.arguments),
            timeout=timeout,
            settle=settle,
            key_ttl=key_ttl,
            retries=retries or RetryPolicy(),
            durable=durable,
        )
    except ValueError as error:
        raise declared.refuse(str(error)) from None


def _check_flags(declared: Declared, *, read_only: bool, effect: dict[str, Any]) -> None:
    if read_only and effect:
        flag, value = next(iter(effect.items()))
        raise declared.refuse(
            f"read_only=True says that it changes nothing, so {flag}={value} has no meaning. Leave one of them out"
        )
    if "requires_approval" in effect:
        raise declared.refuse(
            "requires_approval=True is not supported in this version: approvals come with effects that are sent once. "
            "Until then keep this effect out of tasks"
        )
    if not read_only and "idempotent" not in effect:
        raise declared.refuse(
            "it is neither read_only nor idempotent. Effects that must be sent once come with a later version. "
            "Write @app.tool(read_only=True) if it changes nothing, or @app.tool(idempotent=True) if the same call "
            "may be sent again (the remote honours op.key, or twice is the same as once)"
        )


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
