import re
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import ids, keys
from outlive.protocol.ids import InvalidId
from outlive.protocol.subjects import CommandSubject, Subjects

VALID = st.from_regex(r"[A-Za-z0-9-][A-Za-z0-9_-]{0,63}", fullmatch=True)
BAD = ["", " ", "a b", "a.b", "*", ">", "_a", "a\n", "\0", "ü", "a/b", "x" * 65, "x" * 300, None, 5, b"a", ["a"]]


@given(VALID)
def test_valid_ids_pass(value: str) -> None:
    assert ids.check("task_id", value) == value


@pytest.mark.parametrize("value", BAD)
def test_other_ids_are_refused_with_the_rule(value: object) -> None:
    rule = "1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _"
    with pytest.raises(InvalidId, match=f"^task_id .* is not allowed: {re.escape(rule)}$") as caught:
        ids.check("task_id", value)
    assert len(str(caught.value)) < 200


def test_tenants_are_shorter() -> None:
    assert ids.check_tenant("t" * 32) == "t" * 32
    with pytest.raises(InvalidId, match="1 to 32 characters"):
        ids.check_tenant("t" * 33)


def test_new_ids_are_uuids_of_version_7_that_sort_by_time() -> None:
    first = ids.new_id()
    time.sleep(0.002)
    second = ids.new_id()
    assert first < second
    made = uuid.UUID(first)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert abs((made.int >> 80) / 1000 - time.time()) < 60
    assert ids.check("task_id", first) == first
    assert len({ids.new_id() for _ in range(1000)}) == 1000


@given(VALID, VALID)
def test_a_childs_id_depends_on_all_that_names_it(parent: str, step: str) -> None:
    made = ids.child_id("t", parent, step)
    assert len(made) == 26
    assert ids.check("task_id", made) == made
    assert made == ids.child_id("t", parent, step)
    assert made != ids.child_id("u", parent, step)
    assert made != ids.child_id("t", parent, step + "x")


def test_the_longest_key_fits() -> None:
    key = keys.operation_key("t" * 32, "a" * 64, "s" * 64, "9" * 10)
    assert len(key) <= keys.KEY_LENGTH
    assert keys.operation_key("default", "a", "3", "1") == "default/a:3:1"
    made = uuid.UUID(keys.operation_uuid(key))
    assert made.version == 5


@given(VALID.filter(lambda name: len(name) <= 32), VALID, st.sampled_from(["submit", "pause"]), st.none() | VALID)
def test_subjects_are_read_as_they_were_built(tenant: str, task_id: str, verb: str, principal: str | None) -> None:
    subjects = Subjects("mine")
    subject = subjects.command(tenant, task_id, verb, principal)
    assert subjects.parse_command(subject) == CommandSubject(tenant, task_id, verb, principal)


@pytest.mark.parametrize(
    "subject",
    [
        "outlive.t.cmd.a",
        "outlive.t.cmd.a.pause.me.too",
        "other.t.cmd.a.pause",
        "outlive.t.progress.a",
        "outlive._t.cmd.a.pause",
        "outlive.t.cmd.*.pause",
        "outlive.t.cmd..pause",
        "outlive.t.cmd.a.pause.",
        "",
    ],
)
def test_other_subjects_are_refused(subject: str) -> None:
    with pytest.raises(InvalidId):
        Subjects().parse_command(subject)


def test_subjects_are_those_of_the_contract() -> None:
    subjects = Subjects()
    assert subjects.command("t", "a", "pause") == "outlive.t.cmd.a.pause"
    assert subjects.progress("t", "a") == "outlive.t.progress.a"
    assert subjects.answer("t", "a") == "outlive.t.answer.a"
    assert subjects.attention("t", "a") == "outlive.t.attention.a"
    assert subjects.api("t", "get") == "outlive.t.api.get"
    assert (subjects.all_commands, subjects.commands_stream) == ("outlive.*.cmd.>", "OUTLIVE_COMMANDS")
    assert (subjects.all_progress, subjects.progress_stream) == ("outlive.*.progress.*", "OUTLIVE_PROGRESS")
