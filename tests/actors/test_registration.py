"""What is declared, what is refused, and the words in which it is refused."""

import enum
import functools
import inspect
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import attrs
import jsonschema
import msgspec
import pydantic
import pytest

from outlive.actors import App, Limit, Operation, Outcome, RetryPolicy, Secret, Task
from outlive.actors.context import current
from outlive.actors.signature import RegistrationError
from outlive.actors.tool import DeclaredTool, DirectCall
from outlive.protocol import codec, ids, keys
from outlive.protocol.tools import Companion, Kind, Tool

if TYPE_CHECKING:
    from fractions import Fraction

HERE = "tests/actors/test_registration.py"


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


@attrs.define
class Size:
    width: int


class Place(pydantic.BaseModel):
    name: str
    near: list["Place"] = []


class Decision(msgspec.Struct):
    approved: bool


class Opaque:
    pass


@dataclass(frozen=True)
class Running:
    kind: str = "collect"
    task_id: str = "t1"
    tenant: str = "default"


@pytest.fixture
def app() -> App:
    return App("shop")


def line_of(fn: Callable[..., Any]) -> str:
    return f"{HERE}:{inspect.unwrap(fn).__code__.co_firstlineno}"


def refused(decorate: Callable[[Callable[..., Any]], Any], fn: Callable[..., Any], what: str = "tool") -> str:
    """Return why a function is refused, after file, line and name were checked."""
    with pytest.raises(RegistrationError) as caught:
        decorate(fn)
    start = f"{line_of(fn)}: {what} {fn.__name__!r}: "
    assert str(caught.value).startswith(start), str(caught.value)
    return str(caught.value).removeprefix(start)


# What a declaration says


def test_a_read_only_tool(app: App) -> None:
    @app.tool(read_only=True, title="read {path}", timeout=5, durable="before_next")
    def find_todos(path: str, limit: int = 10) -> list[str]:
        return [path] * limit

    assert app.tools["find_todos"] is find_todos
    assert (find_todos.name, find_todos.read_only, find_todos.idempotent) == ("find_todos", True, False)
    assert (find_todos.takes_operation, find_todos.is_async) == (False, False)
    assert (find_todos.result_type, find_todos.timeout, find_todos.durable) == (list[str], 5, "before_next")
    assert find_todos.retries == RetryPolicy(max_attempts=5, base=0.5, cap=60)
    assert find_todos.describe({"path": "a.py"}) == "read a.py"
    assert find_todos.fn("a", 2) == ["a", "a"]


def test_an_idempotent_tool_with_an_operation_in_front(app: App) -> None:
    @app.tool(idempotent=True, key_ttl=3600, settle=2)
    async def send(op: Operation, to: str, *, body: str = "") -> uuid.UUID:
        return uuid.UUID(op.uuid)

    assert (send.takes_operation, send.is_async, send.result_type) == (True, True, uuid.UUID)
    assert (send.timeout, send.key_ttl, send.settle, send.title) == (60.0, 3600, 2, "send")
    assert send.bind(("me",), {"body": "hello"}) == {"to": "me", "body": "hello"}
    assert list(send.input_schema["properties"]) == ["body", "to"]


def test_a_limit_is_declared_with_its_tool(app: App) -> None:
    @app.tool(read_only=True, rate_limit=Limit(calls=10, burst=5))
    def look(path: str) -> str:
        return path

    assert look.rate_limit == Limit(calls=10, per=1, burst=5)
    wrong: Any = 10
    with pytest.raises(
        RegistrationError, match=re.escape("rate_limit=10 is no limit. Write: rate_limit=Limit(calls=10, per=1)")
    ):
        app.tool(read_only=True, rate_limit=wrong, name="again")(look.fn)


def test_an_effect_that_is_sent_once(app: App) -> None:
    @app.tool
    def post(text: str) -> None: ...

    assert (post.read_only, post.idempotent, post.requires_approval, post.settle) == (False, False, False, None)
    assert (post.reconciler, post.preparer, post.compensator, post.approval_ttl) == (None, None, None, 7 * 86_400)
    assert not post.needs_approval({"text": "x"})


def test_an_effect_that_needs_a_yes(app: App) -> None:
    def preview(amount: int, to: str) -> str:
        return f"{amount} to {to}"

    @app.tool(requires_approval=lambda amount, **_: amount > 100, approval_ttl=60, settle=0, prepare=preview)
    def pay(amount: int = 500, to: str = "me") -> None: ...
    @app.tool(requires_approval=True)
    def remove(path: str) -> None: ...

    assert pay.needs_approval({}) and not pay.needs_approval({"amount": 3})
    assert remove.needs_approval({"path": "x"})
    assert (pay.approval_ttl, pay.settle, remove.approval_ttl) == (60, 0, 7 * 86_400)
    assert pay.preparer is not None and pay.preparer.fn is preview


def test_a_function_that_returns_an_awaitable_is_async(app: App) -> None:
    @app.tool(read_only=True)
    def ask(question: str) -> Awaitable[int]:
        raise NotImplementedError

    assert (ask.is_async, ask.result_type) == (True, int)


def test_a_wrapped_function_is_read_through(app: App) -> None:
    async def inner(n: int) -> str:
        return str(n)

    @functools.wraps(inner)
    def outer(*args: Any, **kwargs: Any) -> Any:
        return inner(*args, **kwargs)

    tool = app.tool(read_only=True)(outer)
    assert (tool.name, tool.is_async, tool.result_type) == ("inner", True, str)
    assert tool.bind((), {"n": 3}) == {"n": 3}


def test_a_kind(app: App) -> None:
    @app.task(name="licence-audit", title="audit {folder}")
    async def audit(task: Task, folder: str, deep: bool = False) -> int:
        return 0

    kind = app.kinds["licence-audit"]
    assert kind is audit and kind.result_type is int
    assert kind.bind(("x",), {"deep": False}) == {"folder": "x"}
    assert kind.describe({"folder": "x"}) == "audit x"
    assert kind.decode_input(kind.encode_input({"folder": "x", "deep": True})) == {"folder": "x", "deep": True}
    jsonschema.validate({"folder": "x"}, kind.input_schema)
    assert kind.input_schema["properties"]["deep"] == {"type": "boolean", "default": False}


def test_the_code_version_names_the_source(app: App) -> None:
    def kind_of(result: str) -> str:
        space: dict[str, Any] = {"app": App("other"), "Task": Task}
        exec(f"@app.task\nasync def go(task: Task) -> str:\n    return {result!r}", space)  # noqa: S102  # two versions of a kind
        return cast("Kind[..., Any]", space["go"]).code_version

    @app.task
    async def first(task: Task) -> None:
        """Do this."""

    @app.task
    async def second(task: Task) -> None:
        """Do that."""

    assert len(first.code_version) == 32 and first.code_version != second.code_version
    assert kind_of("a") == kind_of("a")  # no source at hand: the name stands for it


def test_signals(app: App) -> None:
    go = app.signal("go", Decision)
    assert app.signal("go", Decision) == go
    assert app.signals == {"go": go}
    assert go.decode(go.encode(Decision(approved=True))) == Decision(approved=True)
    with pytest.raises(codec.NotStorable):
        go.decode(b'{"approved": 1}')
    with pytest.raises(RegistrationError) as caught:
        app.signal("go", int)
    assert str(caught.value) == (f"signal 'go' of app 'shop' has the type {Decision} already. Choose another name")
    with pytest.raises(ids.InvalidId):
        app.signal("a.b", int)
    with pytest.raises(RegistrationError, match=r"^signal 'odd': Opaque has no JSON form"):
        app.signal("odd", Opaque)


def test_registries_are_read_only_views(app: App) -> None:
    tools = cast("dict[str, Any]", app.tools)
    with pytest.raises(TypeError):
        tools["x"] = 1
    with pytest.raises(AttributeError):
        make(app).timeout = 3  # type: ignore[misc]  # what is refused


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Point, Point(1, 2)),
        (Size, Size(3)),
        (Place, Place(name="here", near=[Place(name="there")])),
        (Decision, Decision(approved=True)),
        (Colour, Colour.RED),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, UTC)),
        (Decimal, Decimal("1.10")),
        (uuid.UUID, uuid.UUID(int=5)),
        (bytes, b"\0\xff"),
        (Path, Path("a/b")),
        (dict[str, list[Point | None]], {"a": [Point(1), None]}),
        (Annotated[int, msgspec.Meta(gt=0)], 2**70),
        (set[int], {3, 1, 2}),
    ],
    ids=repr,
)
def test_values_of_users_as_parameter_default_and_result(app: App, declared: Any, value: Any) -> None:
    def echo(value: Any, again: Any = value) -> Any:
        return value

    echo.__annotations__ = {"value": declared, "again": declared, "return": declared}
    tool = app.tool(read_only=True)(echo)
    body = tool.encode_arguments(tool.bind((value,), {}))
    assert tool.decode_arguments(body) == {"value": value}
    assert type(tool.decode_arguments(body)["value"]) is type(value)
    assert codec.unpack(codec.pack(value, tool.result_type)[0], tool.result_type) == value
    jsonschema.validate(codec.decode(body), tool.input_schema)
    assert set(tool.input_schema["required"]) == {"value"} and "default" in tool.input_schema["properties"]["again"]


# Binding and recognising a call


def make(app: App) -> Tool[..., Any]:
    @app.tool(read_only=True)
    def search(text: str, limit: int = 10, *, tags: list[str] | None = None, exact: bool = False) -> list[str]:
        return []

    return search


@pytest.mark.parametrize(
    ("args", "kwargs", "bound"),
    [
        (("a",), {}, {"text": "a"}),
        (("a", 10), {}, {"text": "a"}),
        (("a", 5), {}, {"text": "a", "limit": 5}),
        ((), {"limit": 3, "text": "a"}, {"text": "a", "limit": 3}),
        (("a",), {"tags": ["x"], "limit": 10}, {"text": "a", "tags": ["x"]}),
        (("a",), {"exact": 0}, {"text": "a", "exact": 0}),
        (("a",), {"limit": True}, {"text": "a", "limit": True}),
    ],
)
def test_bind(app: App, args: tuple[Any, ...], kwargs: dict[str, Any], bound: dict[str, Any]) -> None:
    found = make(app).bind(args, kwargs)
    assert found == bound and list(found) == list(bound)
    assert [type(value) for value in found.values()] == [type(value) for value in bound.values()]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'text'"),
        ((), {"limit": 3}, "missing a required argument: 'text'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"text": "b"}, "multiple values for argument 'text'"),
        (("a",), {"colour": "b"}, "got an unexpected keyword argument 'colour'"),
    ],
)
def test_arguments_that_do_not_fit(app: App, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError) as caught:
        make(app).bind(args, kwargs)
    shown = "search(text: str, limit: int = 10, *, tags: list[str] | None = None, exact: bool = False) -> list[str]"
    assert str(caught.value) == f"{shown}: {why}"


def test_an_argument_of_another_type_is_named(app: App) -> None:
    tool = make(app)
    with pytest.raises(codec.NotStorable) as caught:
        tool.encode_arguments(tool.bind(("a",), {"tags": ["x", 3]}))
    assert str(caught.value) == "search(tags[1]): Expected `str`, got `int`"
    with pytest.raises(codec.NotStorable, match=r"^search\(text\): object has no JSON form"):
        tool.encode_arguments(tool.bind((object(),), {}))
    with pytest.raises(codec.NotStorable, match=r"^search\(limit\): Expected `int`, got `bool`"):
        tool.encode_arguments(tool.bind(("a", True), {}))


def test_an_input_of_a_stranger_is_refused_with_the_signature(app: App) -> None:
    @app.task
    async def collect(task: Task, folder: str) -> int:
        return 0

    with pytest.raises(codec.NotStorable) as caught:
        collect.decode_input(b'{"folder":"a","depth":3}')
    assert str(caught.value) == "collect(folder: str) -> int: Object contains unknown field `depth`"
    with pytest.raises(codec.NotStorable) as caught:
        collect.decode_input(b"{}")
    assert str(caught.value) == "collect(folder: str) -> int: Object missing required field `folder`"


def test_equal_calls_have_equal_digests(app: App) -> None:
    tool = make(app)

    def digest(*args: Any, **kwargs: Any) -> bytes:
        return tool.digest(tool.encode_arguments(tool.bind(args, kwargs)))

    assert digest("a") == digest(text="a") == digest("a", 10, exact=False) == digest("a", limit=10, tags=None)
    assert len({digest("a"), digest("b"), digest("a", 11), digest("a", exact=True)}) == 4


def test_a_digest_survives_another_order_and_new_parameters() -> None:
    def old(a: int, b: str) -> None: ...
    def new(b: str, *, c: float = 1.5, a: int) -> None: ...

    tools = [App("x").tool(read_only=True, name="same")(fn) for fn in (old, new)]
    bodies = [tool.encode_arguments(tool.bind((), {"a": 1, "b": "x"})) for tool in tools]
    assert bodies[0] == bodies[1] == b'{"a":1,"b":"x"}'
    assert tools[0].digest(bodies[0]) == tools[1].digest(bodies[1])


def test_sets_and_dicts_are_encoded_in_one_order(app: App) -> None:
    @app.tool(read_only=True)
    def take(names: set[str], pairs: dict[str, int]) -> None: ...

    body = take.encode_arguments({"names": {"c", "a", "b"}, "pairs": {"z": 1, "y": 2}})
    assert body == b'{"names":["a","b","c"],"pairs":{"y":2,"z":1}}'


# Options


def test_options_make_a_copy(app: App) -> None:
    tool = make(app)
    other = tool.with_options(
        step_id="s-1", timeout=3, durable="before_next", title="x", retries=RetryPolicy(max_attempts=1)
    )
    assert (other.step_id, other.timeout, other.durable, other.title) == ("s-1", 3, "before_next", "x")
    assert (other.retries.max_attempts, other.name, other.fn) == (1, tool.name, tool.fn)
    assert (tool.step_id, tool.timeout, tool.durable, tool.title) == (None, 60.0, "", "search")
    assert other.with_options(timeout=4).step_id == "s-1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"step_id": "a.b"},
            "step_id 'a.b' is not allowed: 1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _",
        ),
        ({"timeout": 0}, "timeout of search is 0: give seconds above 0"),
        ({"timeout": float("nan")}, "timeout of search is nan: give seconds above 0"),
        ({"durable": "soon"}, "durable of search is 'soon': give \"before_next\" or leave it out"),
    ],
)
def test_bad_options_of_a_tool(app: App, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        make(app).with_options(**options)


def test_options_of_a_kind(app: App) -> None:
    @app.task
    async def collect(task: Task) -> None: ...

    other = collect.with_options(task_id="t", priority=5, labels={"a": "b"}, command_id="c")
    assert (other.task_id, other.priority, other.labels, other.command_id) == ("t", 5, {"a": "b"}, "c")
    assert (collect.task_id, collect.priority, collect.labels, collect.command_id) == (None, 0, {}, None)
    for bad in ("_x", "", "a" * 65):
        with pytest.raises(ids.InvalidId, match=r"^task_id "):
            collect.with_options(task_id=bad)
        with pytest.raises(ids.InvalidId, match=r"^command_id "):
            collect.with_options(command_id=bad)
    with pytest.raises(ValueError, match=r"^priority of collect is 101: give -100 to 100, higher first$"):
        collect.with_options(priority=101)
    with pytest.raises(ValueError, match="max_attempts >= 1 and 0 <= base <= cap"):
        RetryPolicy(max_attempts=0)


def test_an_operation_has_a_uuid_and_reports() -> None:
    seen: list[Any] = []
    now = datetime.now(UTC)
    op = Operation(key="default/t:1:1", started_at=now, deadline=now, report=lambda *args: seen.append(args))
    op.progress("half", done=1, total=2)
    assert op.uuid == keys.operation_uuid("default/t:1:1") and op.attempt == 1
    assert seen == [("half", 1, 2)]
    Operation(key="k", started_at=now, deadline=now).progress("nobody listens")


@pytest.mark.parametrize(
    ("title", "bound", "shown"),
    [
        ("search", {"text": "a"}, "search"),
        ("search {text} ({limit})", {"text": "a"}, "search a (10)"),
        ("{text:d}", {"text": "a"}, "{text:d}"),
        ("{text}", {"text": "a" * 300}, "a" * 197 + "..."),
    ],
)
def test_titles(app: App, title: str, bound: dict[str, Any], shown: str) -> None:
    assert make(app).with_options(title=title).describe(bound) == shown


# Calling a declaration like a function


def test_a_tool_called_directly_inside_a_task(app: App) -> None:
    @app.tool(read_only=True)
    def find_todos(path: str) -> list[str]:
        return []

    token = current.set(Running())
    try:
        with pytest.raises(DirectCall) as caught:
            cast("Any", find_todos)("a.py")
    finally:
        current.reset(token)
    assert str(caught.value) == (
        "find_todos() was called directly inside task 'collect': its result would not survive a crash. "
        "Write: await task.call(find_todos, ...). In a test: find_todos.fn(...)"
    )


def test_a_tool_called_directly_outside_a_task(app: App) -> None:
    with pytest.raises(DirectCall) as caught:
        cast("Any", make(app))("x")
    assert str(caught.value) == (
        "search() is a tool and was called directly, outside a task. In a task write: await task.call(search, ...). "
        "In a test, or inside another tool: search.fn(...)"
    )


def test_a_kind_called_directly(app: App) -> None:
    @app.task
    async def collect(task: Task) -> None: ...

    with pytest.raises(DirectCall) as caught:
        cast("Any", collect)()
    assert str(caught.value) == (
        "collect() is a task and was called directly: nothing of it would survive a crash. "
        "In a task write: await task.spawn(collect, ...). Elsewhere: await client.submit(collect, ...)"
    )


# What is refused


def test_flags_that_are_refused(app: App) -> None:
    def pay(amount: int) -> None: ...
    def large(amount: int) -> bool: ...  # type: ignore[empty-body]

    for flag, shown in {
        "idempotent": True,
        "requires_approval": True,
        "key_ttl": 60,
        "settle": 0,
        "approval_ttl": 60,
    }.items():
        assert refused(app.tool(read_only=True, **cast("Any", {flag: shown})), pay) == (
            f"read_only=True says that it changes nothing, so {flag}={shown} has no meaning. Leave one of them out"
        )
    assert refused(app.tool(read_only=True, requires_approval=large), pay) == (
        "read_only=True says that it changes nothing, so requires_approval=large has no meaning. Leave one of them out"
    )
    assert refused(app.tool(**cast("Any", {"readonly": True})), pay).startswith(
        "has no option 'readonly'. It may have: approval_ttl, classify"
    )
    assert refused(app.tool(key_ttl=60), pay) == (
        "key_ttl=60 has no meaning without idempotent=True. Add it, or leave key_ttl out"
    )
    assert refused(app.tool(approval_ttl=60), pay) == (
        "approval_ttl=60 has no meaning without requires_approval=True. Add it, or leave approval_ttl out"
    )
    assert not app.tools


def test_rules_that_are_refused(app: App) -> None:
    def pay(amount: int, to: str = "me") -> None: ...
    def large(sum: int) -> bool: ...  # type: ignore[empty-body]  # noqa: A002  # what is refused
    async def later(amount: int, to: str) -> bool: ...  # type: ignore[empty-body]

    called = "requires_approval is called with the arguments, by name. Write: def"
    rule = cast("Any", later)
    assert refused(app.tool(requires_approval=large), pay) == f"{called} large(amount: int, to: str = 'me') -> bool"
    assert refused(app.tool(requires_approval=rule), pay) == f"{called} later(amount: int, to: str = 'me') -> bool"
    assert refused(app.tool(requires_approval=lambda: True), pay) == (
        f"{called} rule(amount: int, to: str = 'me') -> bool"
    )
    assert refused(app.tool(unique=lambda order: order), pay) == (
        "unique is called with the arguments, by name. Write: def rule(amount: int, to: str = 'me') -> str"
    )
    assert refused(app.tool(unique_within="task"), pay) == (
        "unique_within=task has no meaning without unique=. Add it, or leave unique_within out"
    )


def test_the_name_of_an_action(app: App) -> None:
    @app.tool(unique=lambda order, **_: order)
    def pay(order: str, cents: int = 1) -> None: ...

    assert (pay.action({"order": "o-1"}), pay.unique_within) == ("o-1", "tenant")
    assert pay.action({"order": "o" * 201}) == pay.action({"order": "o" * 201}) != pay.action({"order": "o" * 202})
    assert pay.action({"order": "o\0"}) != pay.action({"order": "o"})
    with pytest.raises(TypeError, match="unique of pay returned ''"):
        pay.action({"order": ""})


# Companions


def mail(app: App) -> DeclaredTool[..., Any]:
    @app.tool
    def send(op: Operation, to: str, *, body: str = "") -> str | None:
        return to

    return send


def misfit(decorate: Callable[[Callable[..., Any]], Any], fn: Callable[..., Any], what: str) -> str:
    """Return why a companion of `send` is refused, after the place was checked."""
    with pytest.raises(RegistrationError) as caught:
        decorate(fn)
    start = f"{line_of(fn)}: {what} of tool 'send': "
    assert str(caught.value).startswith(start), str(caught.value)
    return str(caught.value).removeprefix(start)


def test_companions_are_kept_with_the_tool_and_its_copies(app: App) -> None:
    send = mail(app)
    before = send.with_options(timeout=3)

    def find(op: Operation, to: str, *, body: str = "x") -> Outcome[str | None]:
        return Outcome.did_not_happen()

    async def preview(to: str, body: str) -> str:
        return f"{len(body)} characters to {to}"

    @functools.wraps(find)
    def undo(*args: Any, **kwargs: Any) -> None: ...

    assert (
        send.reconcile(find) is find and send.prepare(preview) is preview and send.compensate(undo) is send.compensator
    )
    assert app.tools["send"].reconciler == Companion(name="find", fn=find, takes_operation=True, is_async=False)
    copy = send.with_options(step_id="mail")
    assert copy.reconciler is send.reconciler and copy.compensator is send.compensator is not None
    assert copy.preparer == Companion(name="preview", fn=preview, takes_operation=False, is_async=True)
    assert before.reconciler is None
    assert send.whole({"to": "me"}) == {"to": "me", "body": ""}


def test_companions_that_are_refused(app: App) -> None:
    send = mail(app)

    def other(op: Operation, to: str, text: str) -> Outcome[str | None]: ...  # type: ignore[empty-body]
    def wrong(to: str, body: bytes) -> Outcome[str | None]: ...  # type: ignore[empty-body]
    def plain(to: str, body: str) -> str | None: ...
    def unsure(to: str, body: str) -> Outcome[Any]: ...  # type: ignore[empty-body]
    def many(*args: str, to: str, body: str) -> Outcome[str | None]: ...  # type: ignore[empty-body]
    async def number(to: str, body: str) -> int: ...  # type: ignore[empty-body]
    def sometimes(op: Operation, to: str) -> None: ...

    called = "it is called with the arguments of send, by name. Write:"
    outcome = "-> Outcome[str | None]"
    assert misfit(send.reconcile, other, "reconcile") == (
        f"{called} def other(op: Operation, to: str, *, body: str = '') {outcome}"
    )
    for fn in (wrong, plain, unsure, many):
        assert misfit(send.reconcile, fn, "reconcile") == (
            f"{called} def {fn.__name__}(to: str, *, body: str = '') {outcome}"
        )
    assert misfit(send.prepare, number, "prepare") == (f"{called} async def number(to: str, *, body: str = '') -> str")
    assert misfit(send.compensate, sometimes, "compensate") == (
        f"{called} def sometimes(op: Operation, to: str, *, body: str = '') -> ..."
    )
    with pytest.raises(RegistrationError, match=r"^@send.reconcile wants a function \(def or async def\), not 3$"):
        send.reconcile(cast("Any", 3))
    assert (send.reconciler, send.preparer, send.compensator) == (None, None, None)


def test_what_undoes_an_effect_is_an_effect_with_options_of_its_own(app: App) -> None:
    send = mail(app)

    @send.compensate(idempotent=True, timeout=3, title="take {to} back")
    def unsend(op: Operation, to: str, *, body: str) -> int:
        return 1

    assert unsend is send.compensator
    assert (unsend.name, unsend.idempotent, unsend.timeout, unsend.result_type) == ("unsend", True, 3, int)
    assert unsend.whole({"to": "me"}) == {"to": "me", "body": ""}
    assert "unsend" not in app.tools

    @unsend.reconcile
    def find(op: Operation, to: str, body: str) -> Outcome[int]:
        return Outcome.did_not_happen()

    assert unsend.reconciler is not None


def test_compensators_that_are_refused(app: App) -> None:
    send = mail(app)

    def untyped(to: str, body: str): ...  # type: ignore[no-untyped-def]  # noqa: ANN202  # what is refused
    def looks(to: str, body: str) -> None: ...

    with pytest.raises(RegistrationError, match="its result has no type"):
        send.compensate(untyped)
    with pytest.raises(RegistrationError, match="what undoes an effect is not read_only"):
        send.compensate(read_only=True)(looks)

    @app.tool
    def login(user: str, password: Secret[str]) -> None: ...

    def logout(user: str, password: Secret[str]) -> None: ...

    with pytest.raises(RegistrationError, match="secrets are not kept, so it could not be called with password"):
        login.compensate(logout)


def test_a_companion_is_declared_once(app: App) -> None:
    send = mail(app)

    def find(to: str, body: str) -> Outcome[str | None]: ...  # type: ignore[empty-body]
    def again(to: str, body: str) -> Outcome[str | None]: ...  # type: ignore[empty-body]

    send.reconcile(find)
    assert misfit(send.reconcile, again, "reconcile") == f"send has find already, from {line_of(find)}"


@pytest.mark.parametrize("what", ["reconcile", "prepare", "compensate"])
def test_a_read_only_tool_has_no_companion(app: App, what: str) -> None:
    @app.tool(read_only=True)
    def send(to: str) -> None: ...
    def find(to: str) -> Any: ...

    assert misfit(getattr(send, what), find, what) == (
        f"send is read_only: it changes nothing and is simply run again. Remove @send.{what}"
    )


TYPES = "what msgspec knows, dataclasses, attrs, enums, datetime, Decimal, UUID, bytes, Path, pydantic models"


def test_parameters_that_are_refused(app: App) -> None:
    tool = app.tool(read_only=True)

    def untyped(path) -> None: ...  # type: ignore[no-untyped-def]  # noqa: ANN001  # what is refused
    def many(*paths: str) -> None: ...
    def named(**paths: str) -> None: ...
    def positional(path: str, /) -> None: ...
    def late(path: str, op: Operation) -> None: ...
    def opaque(path: Opaque) -> None: ...
    def nothing(path: str = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013  # what is refused
    def other(path: int = "a") -> None: ...  # type: ignore[assignment]  # what is refused

    assert refused(tool, untyped) == f"parameter 'path' has no type. Write: path: str (or {TYPES})"
    assert refused(tool, many) == "*paths has no fixed shape to store. Write: paths: list[...]"
    assert refused(tool, named) == "**paths has no fixed shape to store. Write: paths: dict[str, ...]"
    assert refused(tool, positional) == (
        "parameter 'path' is positional-only, but arguments are stored by name. Remove the /"
    )
    assert refused(tool, late) == "op: Operation must be the first parameter"
    assert refused(tool, opaque) == (
        f"parameter 'path' of type {__name__}.Opaque cannot be stored: Opaque has no JSON form. "
        "Use a dataclass, a msgspec.Struct or a pydantic model"
    )
    assert refused(tool, nothing) == (
        "default None of parameter 'path' is no str: Expected `str`, got `null`. Write: path: str | None = None"
    )
    assert refused(tool, other) == "default 'a' of parameter 'path' is no int: Expected `int`, got `str`"


def test_types_that_cannot_be_read(app: App) -> None:
    tool = app.tool(read_only=True)

    def hidden(path: "Fraction") -> None: ...
    def garbled(path: str) -> None: ...

    garbled.__annotations__["path"] = "list["
    assert refused(tool, hidden) == (
        "name 'Fraction' is not defined, but its types are needed at run time. "
        "Import it at the top of the module, not under TYPE_CHECKING and not inside a function"
    )
    assert refused(tool, garbled) == (
        "its types cannot be read: Forward reference must be an expression -- got 'list['"
    )


def test_results_that_are_refused(app: App) -> None:
    tool = app.tool(read_only=True)

    def untyped(path: str): ...  # type: ignore[no-untyped-def]  # noqa: ANN202  # what is refused
    def opened(path: str) -> Iterator[str]: ...  # type: ignore[empty-body]
    def lines(path: str) -> Iterator[str]:
        yield path

    async def later(path: str) -> AsyncIterator[str]:
        yield path

    assert refused(tool, untyped) == f"its result has no type. Write: -> None (or {TYPES})"
    assert refused(tool, opened).startswith("its result of type collections.abc.Iterator[str] cannot be stored: ")
    generator = "a generator cannot be a durable step. Return a list, or call one tool per item"
    assert refused(tool, lines) == refused(tool, later) == generator


def test_names_titles_and_numbers_that_are_refused(app: App) -> None:
    def find(path: str) -> None: ...
    def _find(path: str) -> None: ...

    rule = "1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _"
    assert refused(app.tool(read_only=True), _find) == (
        f"name '_find' is not allowed: {rule}. Write: @app.tool(name=\"...\")"
    )
    assert refused(app.tool(read_only=True, title="read {file}"), find) == (
        "title 'read {file}' names no parameter with {file}. It may use: {path}"
    )
    assert refused(app.tool(read_only=True, title="read {"), find).endswith("Write {{ for a brace")
    assert refused(app.tool(read_only=True, timeout=-1), find) == "timeout of find is -1: give seconds above 0"
    assert refused(app.tool(requires_approval=True, approval_ttl=0), find) == (
        "approval_ttl of find is 0: give seconds above 0"
    )
    assert refused(app.tool(idempotent=True, settle=-1), find) == (
        "settle and key_ttl of find are seconds: give 0 or more"
    )
    with pytest.raises(ids.InvalidId):
        App("a b")


@pytest.mark.parametrize("thing", ["find", print, int, functools.partial(make)])
def test_only_functions_are_declared(app: App, thing: Any) -> None:
    with pytest.raises(RegistrationError) as caught:
        app.tool(thing)
    assert str(caught.value) == f"@app.tool wants a function (def or async def), not {thing!r}"


def test_kinds_that_are_refused(app: App) -> None:
    async def alone(folder: str) -> None: ...
    async def empty() -> None: ...
    def plain(task: Task, folder: str) -> None: ...
    async def twice(task: Task, other: Task) -> None: ...

    decorate = cast("Callable[[Callable[..., Any]], Any]", app.task)
    first = "its first parameter is not the task. Write: async def {}(task: Task, ...)"
    assert refused(decorate, alone, "task") == first.format("alone")
    assert refused(decorate, empty, "task") == first.format("empty")
    assert refused(decorate, plain, "task") == "it is not async, so it could await no step. Write: async def plain"
    assert refused(decorate, twice, "task") == "other: Task must be the first parameter"


def test_a_name_is_given_once(app: App) -> None:
    def find(path: str) -> None: ...

    first = app.tool(read_only=True)(find)
    reason = refused(app.tool(read_only=True), find)
    assert reason == (
        f"app 'shop' has this name already, from {line_of(first.fn)}. Choose another one: @app.tool(name=\"...\")"
    )
    assert app.tool(read_only=True, name="find-2")(find).name == "find-2"


def test_apps_are_merged(app: App) -> None:
    other = App("built-in")
    tool = make(other)
    signal = other.signal("go", int)

    @other.task
    async def audit(task: Task) -> None: ...

    app.include(other)
    app.include(other)
    assert (app.tools["search"], app.kinds["audit"], app.signals["go"]) == (tool, audit, signal)
    third = App("third")
    make(third)
    with pytest.raises(RegistrationError, match="app 'shop' has this name already"):
        app.include(third)
