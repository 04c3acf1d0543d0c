"""Reads what a declared function takes and returns, and refuses what could not be stored."""

import inspect
import re
import string
import typing
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from outlive.protocol import codec, ids, secrets
from outlive.protocol.arguments import Arguments
from outlive.protocol.tools import Companion, Operation

_TYPES: Final = "what msgspec knows, dataclasses, attrs, enums, datetime, Decimal, UUID, bytes, Path, pydantic models"

_AWAITABLE: Final = frozenset({Awaitable, Coroutine})


class RegistrationError(TypeError):
    """A declaration cannot be taken. The message has file, line, the reason and what to write instead.

    Causes: a parameter or result without a type or with one that cannot be stored, ``*args`` or ``**kwargs``, flags
    that contradict each other, a companion that takes other arguments than its tool, a name that is taken or not
    allowed.
    """


@dataclass(frozen=True, slots=True)
class Declared:
    """Where a function stands, for messages: ``file:line: tool 'name'``."""

    what: str
    name: str
    fn: Callable[..., Any]

    @property
    def place(self) -> str:
        """File and line of the function."""
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        if code is None:
            return "<unknown>"
        path = Path(code.co_filename)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}:{code.co_firstlineno}"

    def refuse(self, reason: str) -> RegistrationError:
        """Return the error that refuses this declaration."""
        return RegistrationError(f"{self.place}: {self.what} {self.name!r}: {reason}")


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes and returns, read once.

    Attributes:
        arguments: what a caller passes.
        leading: the parameter in front that the system fills in is there.
        result_type: the type of the (awaited) result.
        is_async: the function returns an awaitable.
    """

    arguments: Arguments
    leading: bool
    result_type: Any
    is_async: bool


def named(what: str, name: str | None, fn: Callable[..., Any]) -> Declared:
    """Return the declaration of a function under its own or a chosen name; raises `RegistrationError`."""
    if not inspect.isfunction(inspect.unwrap(fn)):
        raise RegistrationError(f"@app.{what} wants a function (def or async def), not {fn!r}")
    declared = Declared(what, str(name or getattr(fn, "__name__", "")), fn)
    try:
        ids.check("name", declared.name)
    except ids.InvalidId as error:
        raise declared.refuse(f'{error}. Write: @app.{what}(name="...")') from None
    return declared


def read(declared: Declared, leading: type) -> Signature:
    """Read a function's signature; raises `RegistrationError` for what cannot be stored or called.

    Args:
        declared: the function.
        leading: the type of a first parameter that is not the caller's business.
    """
    fn = declared.fn
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise declared.refuse("a generator cannot be a durable step. Return a list, or call one tool per item")
    hints, signature = _hints(declared), inspect.signature(fn)
    parameters = list(signature.parameters.values())
    has_leading = bool(parameters) and hints.get(parameters[0].name) is leading
    taken = [_parameter(declared, p, hints, leading) for p in parameters[has_leading:]]
    result, is_async = _result(declared, hints)
    shown = inspect.Signature(taken, return_annotation=result)
    return Signature(Arguments(declared.name, shown), has_leading, result, is_async)


def companion(declared: Declared, arguments: Arguments, result: Any = None, shown: str = "...") -> Companion:
    """Read a function that takes a tool's arguments by name; raises `RegistrationError` when it does not.

    Args:
        declared: the function.
        arguments: the tool's.
        result: the type that it must return (awaited); None = any.
        shown: that type as the author would write it.
    """
    hints, parameters = _hints(declared), list(inspect.signature(declared.fn).parameters.values())
    has_operation = bool(parameters) and hints.get(parameters[0].name) is Operation
    found, is_async = _awaited(declared, hints)
    taken = {
        p.name: hints.get(p.name) for p in parameters[has_operation:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }  # fmt: skip
    if taken != arguments.types or len(taken) != len(parameters) - has_operation or result not in (None, found):
        wanted = str(arguments.signature.replace(return_annotation=inspect.Signature.empty)).replace("NoneType", "None")
        operation = "op: Operation" + (", " if arguments.types else "") if has_operation else ""
        raise declared.refuse(
            f"it is called with the arguments of {arguments.name}, by name. Write: {'async ' if is_async else ''}def "
            f"{declared.fn.__name__}({operation}{wanted[1:]} -> {shown}"
        )
    return Companion(name=declared.fn.__name__, fn=declared.fn, takes_operation=has_operation, is_async=is_async)


def check_rule(
    declared: Declared, option: str, rule: Callable[..., Any], arguments: Arguments, result: type = bool
) -> None:
    """Check that a function decides by the arguments, which it is called with by name. Raises `RegistrationError`."""
    name = getattr(rule, "__name__", "rule")
    wanted = str(arguments.signature.replace(return_annotation=result)).replace("NoneType", "None")
    try:
        inspect.signature(rule).bind(**dict.fromkeys(arguments.types))
    except (TypeError, ValueError):
        fits = False
    else:
        fits = not inspect.iscoroutinefunction(rule)
    if not fits:
        name = name if name.isidentifier() else "rule"
        raise declared.refuse(f"{option} is called with the arguments, by name. Write: def {name}{wanted}")


def title_of(declared: Declared, title: str | None, arguments: Arguments) -> str:
    """Return the title, or the name if there is none; raises `RegistrationError` when it names no parameter."""
    if title is None:
        return declared.name
    try:
        fields = [part[1] for part in string.Formatter().parse(title) if part[1] is not None]
    except ValueError as error:
        raise declared.refuse(f"title {title!r}: {error}. Write {{{{ for a brace") from None
    for name in fields:
        if re.split(r"[.\[]", name)[0] not in arguments.signature.parameters:
            known = ", ".join(f"{{{known}}}" for known in arguments.signature.parameters) or "none"
            raise declared.refuse(f"title {title!r} names no parameter with {{{name}}}. It may use: {known}")
    return title


def _hints(declared: Declared) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(declared.fn), include_extras=True)
    except NameError as error:
        raise declared.refuse(
            f"{error}, but its types are needed at run time. Import it at the top of the module, not under "
            "TYPE_CHECKING and not inside a function"
        ) from None
    except (AttributeError, SyntaxError, TypeError) as error:
        raise declared.refuse(f"its types cannot be read: {error}") from None


def _parameter(
    declared: Declared, parameter: inspect.Parameter, hints: dict[str, Any], leading: type
) -> inspect.Parameter:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        instead = f"{name}: list[...]" if stars == "*" else f"{name}: dict[str, ...]"
        raise declared.refuse(f"{stars}{name} has no fixed shape to store. Write: {instead}")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise declared.refuse(f"parameter {name!r} is positional-only, but arguments are stored by name. Remove the /")
    if name not in hints:
        raise declared.refuse(f"parameter {name!r} has no type. Write: {name}: str (or {_TYPES})")
    if hints[name] is leading:
        raise declared.refuse(f"{name}: {leading.__name__} must be the first parameter")
    _storable(declared, f"parameter {name!r}", hints[name])
    if secrets.is_secret(hints[name]) and parameter.default not in (parameter.empty, None):
        raise declared.refuse(f"secret parameter {name!r} has a default, which is no secret. Remove the default")
    if parameter.default is not parameter.empty:
        _fits(declared, parameter, hints[name])
    return parameter.replace(annotation=hints[name])


def _result(declared: Declared, hints: dict[str, Any]) -> tuple[Any, bool]:
    if "return" not in hints:
        raise declared.refuse(f"its result has no type. Write: -> None (or {_TYPES})")
    result, is_async = _awaited(declared, hints)
    if result is typing.NoReturn:
        result = None
    if typing.get_origin(result) is Generator:
        raise declared.refuse("a generator cannot be stored. Return a list")
    _storable(declared, "its result", result)
    return result, is_async


def _awaited(declared: Declared, hints: dict[str, Any]) -> tuple[Any, bool]:
    """Return the type of the (awaited) result, and whether it is awaited."""
    result = hints.get("return")
    is_async = any(map(inspect.iscoroutinefunction, (declared.fn, inspect.unwrap(declared.fn))))
    if not is_async and typing.get_origin(result) in _AWAITABLE:
        return typing.get_args(result)[-1], True
    return result, is_async


def _storable(declared: Declared, what: str, declared_type: Any) -> None:
    try:
        codec.check_type(declared_type)
    except codec.NotStorable as error:
        shown = inspect.formatannotation(declared_type)
        raise declared.refuse(f"{what} of type {shown} cannot be stored: {error.why}") from None


def _fits(declared: Declared, parameter: inspect.Parameter, declared_type: Any) -> None:
    try:
        codec.pack(parameter.default, declared_type)
    except codec.NotStorable as error:
        shown = inspect.formatannotation(declared_type)
        fix = f". Write: {parameter.name}: {shown} | None = None" if parameter.default is None else ""
        raise declared.refuse(
            f"default {parameter.default!r} of parameter {parameter.name!r} is no {shown}: {error.why}{fix}"
        ) from None
