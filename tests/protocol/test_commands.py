from typing import Any

import msgspec
import pytest

from outlive.protocol import codec
from outlive.protocol.commands import VERBS, AnyCommand, Cancel, ChildEnded, Internal, Pause, Resume, Signal, Submit
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
    ],
)
def test_commands_come_back(command: AnyCommand) -> None:
    assert codec.decode(codec.encode(command), AnyCommand) == command


def test_the_verbs_are_the_types() -> None:
    kinds: Any = msgspec.inspect.type_info(AnyCommand)
    assert {kind.tag for kind in kinds.types} == VERBS


def test_unknown_fields_are_tolerated() -> None:
    assert codec.decode(b'{"type":"resume","raise_budget":{"usd":5}}', AnyCommand) == Resume()


@pytest.mark.parametrize(
    "body",
    [
        b'{"type":"retry"}',
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
