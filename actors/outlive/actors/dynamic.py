"""Tools that are made while a worker runs, from what others declare: same options as ``@app.tool``, arguments by schema."""

import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from outlive.actors.signature import Declared
from outlive.actors.tool import ToolOptions, check_flags
from outlive.protocol.arguments import Arguments
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import APPROVAL_TTL, TIMEOUT, AnyTool, Companion, Operation, RetryPolicy, Tool


class DynamicOptions(ToolOptions, total=False):
    """What the author of an app says about somebody else's tool: the options of ``@app.tool``, and how it is reconciled.

    `reconcile`, `prepare` and a function as `requires_approval` are called with the tool's arguments by name.
    """

    reconcile: Callable[..., Outcome[Any]] | Callable[..., Awaitable[Outcome[Any]]]


_EFFECT: Final = (
    "idempotent", "requires_approval", "approval_ttl", "unique", "unique_within", "prepare", "settle", "key_ttl",
    "reconcile",
)  # fmt: skip
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
    if unknown := sorted(options.keys() - _KNOWN):
        raise declared.refuse(f"has no option {unknown[0]!r}. It may have: {', '.join(sorted(_KNOWN))}")
    given = {name: options[name] for name in _EFFECT if options.get(name) not in (None, False)}
    check_flags(declared, given, read_only=bool(options.get("read_only")))
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
            read_only=options.get("read_only", False),
            idempotent=options.get("idempotent", False),
            requires_approval=options.get("requires_approval", False),
            approval_ttl=options.get("approval_ttl", APPROVAL_TTL),
            unique=options.get("unique"),
            unique_within=options.get("unique_within", "tenant"),
            takes_operation=True,
            is_async=True,
            title=options.get("title", name),
            timeout=options.get("timeout", TIMEOUT),
            settle=options.get("settle"),
            key_ttl=options.get("key_ttl"),
            retries=options.get("retries") or RetryPolicy(),
            rate_limit=options.get("rate_limit"),
            classify=options.get("classify"),
            durable=options.get("durable", ""),
            step_id=step_id,
            verify=verify,
            reconciler=_companion(options.get("reconcile")),
            preparer=_companion(options.get("prepare")),
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
