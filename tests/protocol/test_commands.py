from typing import Any

import msgspec
import pytest

from outlive.protocol import codec
from outlive.protocol.commands import (
    VERBS,
    AnyCommand,
    Approve,
    Cancel,
    ChildEnded,
    Internal,
    Pause,
    Reject,
    Resolve,
    Resume,
    Retry,
    Signal,
    Skip,
    Submit,
    letter_name,
)
from outlive.protocol.events import AnyEvent, NoteEvent
from outlive.protocol.operations import Outcome
from outlive.protocol.task import Status


@pytest.mark.parametrize(
    "command",
    [
        Submit(kind="k", input={"a": 2**70}, priority=-100, labels={"a": "b"}, command_id="1", by="ann", note="n"),
        Pause(reason="two\nlines\n"),
        Resume(),
        Cancel(),
        Signal(name="go", value=[1]),
        Approve(operation_id="4-2-1:2", digest="0" * 32, reason="fine"),
        Reject(operation_id="4", reason="too much"),
        Resolve(operation_id="4", verdict="happened", result={"id": 2**70}, reason="seen", reference="T-7"),
        Resolve(operation_id="4", verdict="did_not_happen", new_operation=True),
        Retry(step_id="4", args={"to": "me"}),
        Retry(),
        Skip(step_id="4", result=None),
    ],
)
def test_commands_come_back(command: AnyCommand) -> None:
    assert codec.decode(codec.encode(command), AnyCommand) == command


def test_the_verbs_are_the_types() -> None:
    kinds: Any = msgspec.inspect.type_info(AnyCommand)
    assert {kind.tag for kind in kinds.types} == VERBS


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (Signal(name="go"), "go"),
        (Approve(operation_id="4:2"), "4"),
        (Reject(operation_id="4-1"), "4-1"),
        (Resolve(operation_id="mail:1", verdict="give_up"), "mail"),
        (Retry(step_id="4"), "4"),
        (Retry(), None),
        (Skip(step_id="4", result=1), "4"),
        (Pause(), None),
    ],
)
def test_letters_are_kept_under_what_they_are_about(command: AnyCommand, name: str | None) -> None:
    assert letter_name(command) == name


def test_unknown_fields_are_tolerated() -> None:
    assert codec.decode(b'{"type":"resume","colour":{"red":5}}', AnyCommand) == Resume()


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"edit_plan"}',
        b'{"type":"approve"}',
        b'{"type":"approve","operation_id":"4:0"}',
        b'{"type":"approve","operation_id":"4:"}',
        b'{"type":"approve","operation_id":"4:1\\n"}',
        b'{"type":"reject","operation_id":"a/t:4:1"}',
        b'{"type":"reject","operation_id":"4","digest":"AB"}',
        b'{"type":"resolve","operation_id":"4"}',
        b'{"type":"resolve","operation_id":"4","verdict":"perhaps"}',
        b'{"type":"resolve","operation_id":"4","verdict":"give_up","result":1}',
        b'{"type":"resolve","operation_id":"4","verdict":"happened","new_operation":true}',
        b'{"type":"retry","step_id":"a b"}',
        b'{"type":"retry","args":{}}',
        b'{"type":"skip","step_id":"4"}',
        b'{"type":"child","child":"c","status":"failed"}',
        b'{"kind":"k"}',
        b'{"type":"submit"}',
        b'{"type":"submit","kind":""}',
        b'{"type":"submit","kind":"k\\u0000"}',
        b'{"type":"submit","kind":5}',
        b'{"type":"submit","kind":"k","input":[1]}',
        b'{"type":"submit","kind":"k","input":null}',
        b'{"type":"submit","kind":"k","priority":101}',
        b'{"type":"submit","kind":"k","priority":true}',
        b'{"type":"submit","kind":"k","labels":{"a":1}}',
        b'{"type":"submit","kind":"k","labels":{"a":"\\u0000"}}',
        b'{"type":"submit","kind":"k","labels":{"":"a"}}',
        b'{"type":"pause","by":""}',
        b'{"type":"pause","reason":"\\u0000"}',
        b'{"type":"signal"}',
        b'{"type":"signal","name":"a b"}',
        b'{"type":"signal","name":"_a"}',
        b'{"type":"signal","name":"go\\n"}',
        b"[]",
    ],
)
def test_what_no_client_may_send_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        codec.decode(body, AnyCommand)


def test_what_the_system_writes_is_read_from_a_mailbox() -> None:
    body = b'{"type":"child","child":"c","status":"succeeded","result":{"a":1}}'
    command = codec.decode(body, AnyCommand | Internal)
    assert isinstance(command, ChildEnded)
    assert (command.child, command.status, bytes(command.result)) == ("c", Status.SUCCEEDED, b'{"a":1}')


def test_events_of_a_newer_writer_are_read() -> None:
    body = b'{"type":"note","seq":1,"task_id":"a","tenant":"t","at":"2030-01-01T00:00:00Z","message":"m","step_id":"1","x":1}'
    event = codec.decode(body, AnyEvent)
    assert isinstance(event, NoteEvent)
    assert codec.encode(event) == body.replace(b',"x":1', b"")


def test_outcomes_say_how_many_were_found() -> None:
    assert Outcome.happened("x").matches == 1
    assert Outcome.happened("x", matches=2).matches == 2
    assert Outcome[str].did_not_happen().matches == 0
    assert Outcome[str].happened_result_lost().verdict == "happened_result_lost"
    assert (Outcome[str].refused("no").reason, Outcome[str].unknown("?").verdict) == ("no", "unknown")
