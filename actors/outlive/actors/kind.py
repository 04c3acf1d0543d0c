"""Kinds: durable functions that run tasks."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, overload

from outlive.actors.signature import Declared, named, read, title_of
from outlive.actors.tool import DirectCall
from outlive.protocol import codec
from outlive.protocol.tools import Kind, P, R_co

if TYPE_CHECKING:
    from outlive.actors.task import Task

_P = ParamSpec("_P")
_R = TypeVar("_R")


class DeclaredKind(Kind[P, R_co]):
    """A kind as ``@app.task`` returns it."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers report a direct call as an error; at run time it says what to write

        def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
            raise DirectCall(
                f"{self.name}() is a task and was called directly: nothing of it would survive a crash. "
                f"In a task write: await task.spawn({self.name}, ...). Elsewhere: await client.submit({self.name}, ...)"
            )


class KindOptions(TypedDict, total=False):
    """The options of ``@app.task``."""

    name: str  # instead of the function's; it is known on the wire
    title: str  # what people read, for instance "audit {path}"


@dataclass(frozen=True, slots=True)
class KindDecorator:
    """``@app.task`` and ``@app.task(...)``: makes a kind of an async function whose first parameter is the task."""

    add: Callable[[DeclaredKind[..., Any]], None]
    options: KindOptions = field(default_factory=KindOptions)

    @overload
    def __call__(self, fn: Callable[Concatenate["Task", _P], Awaitable[_R]], /) -> DeclaredKind[_P, _R]: ...
    @overload
    def __call__(self, /, **options: Unpack[KindOptions]) -> "KindDecorator": ...
    def __call__(self, fn: Callable[..., Any] | None = None, /, **options: Unpack[KindOptions]) -> Any:
        """Declare a function, or return the decorator with these options. Raises `RegistrationError`."""
        if fn is None:
            return KindDecorator(self.add, {**self.options, **options})
        kind = declare(fn, **self.options)
        self.add(kind)
        return kind


def declare(fn: Callable[..., Any], *, name: str | None = None, title: str | None = None) -> DeclaredKind[..., Any]:
    """Make a kind of a durable function without putting it into an app; raises `RegistrationError`."""
    from outlive.actors.task import Task  # noqa: PLC0415  # it imports this package's declarations

    declared = named("task", name, fn)
    signature = read(declared, Task)
    if not signature.leading:
        raise declared.refuse(f"its first parameter is not the task. Write: async def {fn.__name__}(task: Task, ...)")
    if not signature.is_async:
        raise declared.refuse(f"it is not async, so it could await no step. Write: async def {fn.__name__}")
    return DeclaredKind(
        name=declared.name,
        fn=fn,
        arguments=signature.arguments,
        result_type=signature.result_type,
        code_version=_code_version(declared),
        title=title_of(declared, title, signature.arguments),
    )


def _code_version(declared: Declared) -> str:
    try:
        source = inspect.getsource(inspect.unwrap(declared.fn))
    except (OSError, TypeError):  # made at run time, or only bytecode is installed
        source = getattr(declared.fn, "__qualname__", declared.name)
    return codec.digest(source.encode()).hex()
