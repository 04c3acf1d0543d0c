"""Tools that are made while a worker runs, from what others declare: same options as ``@app.tool``, arguments by schema."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from outlive.actors.signature import Declared
from outlive.actors.tool import ToolOptions, check_flags, fields
from outlive.protocol.arguments import Arguments
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import AnyTool, Companion, Operation, Tool


class DynamicOptions(ToolOptions, total=False):
    """What the author of an app says about somebody else's tool: the options of ``@app.tool``, and how it is reconciled.

    `reconcile`, `prepare` and a function as `requires_approval` are called with the tool's arguments by name.
    """

    reconcile: Callable[..., Outcome[Any]] | Callable[..., Awaitable[Outcome[Any]]]


_KNOWN: Final = frozenset({*DynamicOptions.__annotations__, *ToolOptions.__annotations__} - {"name"})


def check_options(declared: Declared, options: Mapping[str, Any], schema: Mapping[str, Any]) -> None:
    """Refuse unknown options, those that contradict each other, and functions that take other arguments than the tool.

    Args:
        declared: the tool, for messages.
        options: what was said about it.
        schema: of its arguments.

    Raises:
        RegistrationError: says what to write.
    """
    check_flags(declared, options, known=_KNOWN)
    for name in ("reconcile", "prepare", "requires_approval", "unique"):
        fn = options.get(name)
        if fn is not None and not isinstance(fn, bool):
            _check_function(declared, name, fn, schema)


def _check_function(declared: Declared, option: str, fn: Any, schema: Mapping[str, Any]) -> None:
    if not inspect.isfunction(inspect.unwrap(fn)):
        raise declared.refuse(f"{option} must be a function, not {fn!r}")
    operation = [None] if _takes_operation(fn) else []
    names, required = list(schema.get("properties") or ()), list(schema.get("required") or ())
    try:
        for given in (names, required):  # a caller may leave out the others
            inspect.signature(fn).bind(*operation, **dict.fromkeys(given))
    except TypeError:
        wanted = ["op: Operation"] * len(operation) + [name if name in required else f"{name}=None" for name in names]
        raise declared.refuse(
            f"{option} is called with the tool's arguments, by name. Write: def {fn.__name__}({', '.join(wanted)})"
        ) from None


def make(
    declared: Declared,
    name: str,
    fn: Callable[..., Awaitable[Any]],
    arguments: Arguments,
    options: DynamicOptions,
    *,
    result_type: Any = Any,
    step_id: str | None = None,
    verify: Callable[[], Awaitable[None]] | None = None,
) -> AnyTool:
    """Return a tool whose function takes an operation and the arguments by name; raises `RegistrationError`."""
    check_options(declared, options, arguments.schema)
    try:
        return Tool(
            name=name,
            fn=fn,
            arguments=arguments,
            result_type=result_type,
            takes_operation=True,
            is_async=True,
            title=options.get("title", name),
            step_id=step_id,
            verify=verify,
            reconciler=_companion(options.get("reconcile")),
            preparer=_companion(options.get("prepare")),
            **fields(options),
        )
    except ValueError as error:
        raise declared.refuse(str(error)) from None


def _companion(fn: Callable[..., Any] | None) -> Companion | None:
    if fn is None:
        return None
    is_async = inspect.iscoroutinefunction(inspect.unwrap(fn))
    return Companion(name=fn.__name__, fn=fn, takes_operation=_takes_operation(fn), is_async=is_async)


def _takes_operation(fn: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(fn).parameters), None)
    return first is not None and typing.get_type_hints(fn).get(first) is Operation
