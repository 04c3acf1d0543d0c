import importlib.metadata
import subprocess
import sys

import pytest

import outlive.protocol
from outlive.protocol import errors
from outlive.protocol.answers import Answer, Code
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Failure


def test_public_names_exist_and_are_sorted() -> None:
    names = outlive.protocol.__all__
    assert all(hasattr(outlive.protocol, name) for name in names)
    assert len(set(names)) == len(names)
    constants = [name for name in names if name.isupper()]
    classes = [name for name in names if name[0].isupper() and not name.isupper()]
    assert names == [*sorted(constants), *sorted(classes), *sorted(set(names) - {*constants, *classes})]


def test_every_error_is_public() -> None:
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert classes <= set(outlive.protocol.__all__)


def test_the_version_is_that_of_the_package() -> None:
    assert outlive.protocol.__version__ == importlib.metadata.version("outlive")
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = outlive.protocol.nope


def test_the_contract_imports_neither_network_nor_database() -> None:
    script = "import outlive.protocol, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    assert not {"asyncio", "anyio", "asyncpg", "nats", "pydantic", "attrs", "socket"} & set(loaded)


def test_errors_say_what_happened() -> None:
    failure = Failure(type="HTTPStatusError", message="500", step_id="3")
    assert str(errors.StepFailed(failure)) == "step 3: HTTPStatusError: 500"
    assert str(errors.StepFailed(Failure(type="E", message="m"))) == "E: m"
    assert str(errors.TaskFailed("a", failure)) == "task a failed: HTTPStatusError: 500"
    assert str(errors.TaskCancelled("a")) == "task a was cancelled"
    assert errors.RateLimited(retry_after=3.0).retry_after == 3.0


def test_a_refusal_carries_its_answer() -> None:
    at = outlive.protocol.codec.decode(b'"2030-01-01T00:00:00Z"', outlive.protocol.Answer.__annotations__["at"])
    answer = Answer(command_id="c", task_id="a", ok=False, code=Code.TOO_LATE, message="Task a succeeded.", at=at)
    error = errors.CommandRefused(answer)
    assert (str(error), error.answer) == ("Task a succeeded.", answer)


def test_every_class_of_error_but_what_we_find_ourselves_can_be_raised() -> None:
    own = (cls for cls in errors.ToolError.__subclasses__() if cls.__module__ == errors.__name__)
    raised = {cls.error_class for cls in own}
    assert raised == set(ErrorClass) - {ErrorClass.BUG, ErrorClass.NOT_STORABLE}
