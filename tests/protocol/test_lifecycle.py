"""Every cell of the table of commands and states, with and without an actor in memory."""

from datetime import UTC, datetime
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import lifecycle
from outlive.protocol.answers import Code
from outlive.protocol.commands import AnyCommand, Cancel, ChildEnded, Internal, Pause, Resume, Signal, Submit
from outlive.protocol.lifecycle import TRANSITIONS, Decision, Facts, IllegalTransition, apply, check_transition
from outlive.protocol.task import FINAL, Reason, ReasonCode, Status

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDED_AT = datetime(2029, 12, 31, 23, 59, 59, 500, tzinfo=UTC)

ALLOWED = {
    ("queued", "running"), ("queued", "paused"), ("queued", "failed"), ("queued", "cancelled"),
    ("running", "succeeded"), ("running", "failed"), ("running", "paused"), ("running", "cancelled"),
    ("paused", "running"), ("paused", "queued"), ("paused", "failed"), ("paused", "cancelled"),
    ("failed", "running"),
}  # fmt: skip


def reason(code: ReasonCode) -> Reason:
    return Reason(reason=code, since=NOW, do=f"do {code}")


OPERATOR = reason(ReasonCode.OPERATOR)
APPROVAL = reason(ReasonCode.APPROVAL)
UNKNOWN = reason(ReasonCode.OUTCOME_UNKNOWN)
COMMANDS: list[AnyCommand | Internal] = [
    Submit(kind="k"), Pause(by="ann"), Resume(), Cancel(), Signal(name="go"), ChildEnded(child="c", status=Status.FAILED),
]  # fmt: skip


def facts(
    status: Status,
    *reasons: Reason,
    owned: bool = False,
    started: bool = True,
    cancelling: bool = False,
) -> Facts:
    return Facts(
        task_id="t", status=status, reasons=reasons, owned=owned, started=started, cancelling=cancelling,
        ended_at=ENDED_AT if status in FINAL else None,
    )  # fmt: skip


def decide(command: AnyCommand | Internal, before: Facts) -> Decision:
    return apply(before, command, now=NOW)


def untouched(decision: Decision, before: Facts) -> bool:
    return (decision.status, decision.reasons, decision.cancelling, decision.wake) == (
        before.status, before.reasons, before.cancelling, False,
    )  # fmt: skip


@pytest.mark.parametrize(("old", "new"), [*product(Status, Status)])
def test_only_the_table_changes_a_status(old: Status, new: Status) -> None:
    if old is new or (old.value, new.value) in ALLOWED:
        check_transition(old, new)
    else:
        with pytest.raises(IllegalTransition, match=f"a {old} task cannot become {new}"):
            check_transition(old, new)


def test_nothing_leaves_what_has_succeeded_or_was_cancelled() -> None:
    assert TRANSITIONS[Status.SUCCEEDED] == TRANSITIONS[Status.CANCELLED] == frozenset()


# pause


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING])
def test_pause_without_an_actor_pauses_at_once(status: Status, *, started: bool) -> None:
    decision = decide(Pause(by="ann"), facts(status, started=started))
    assert (decision.code, decision.status, decision.wake, decision.stop) == (Code.APPLIED, Status.PAUSED, False, "")
    (made,) = decision.reasons
    assert made == Reason(reason=ReasonCode.OPERATOR, since=NOW, do="outlive resume t", message="paused by ann")


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING])
def test_pause_with_an_actor_stops_it_before_its_next_step(status: Status) -> None:
    decision = decide(Pause(reason="look first"), facts(status, owned=True))
    assert (decision.code, decision.status, decision.stop) == (Code.APPLIED, status, "pause")
    assert [r.message for r in decision.reasons] == ["look first"]


def test_pause_adds_its_reason_to_others_once() -> None:
    decision = decide(Pause(), facts(Status.PAUSED, APPROVAL))
    assert [r.reason for r in decision.reasons] == [ReasonCode.APPROVAL, ReasonCode.OPERATOR]
    assert decision.status is Status.PAUSED
    again = decide(Pause(), facts(Status.PAUSED, *decision.reasons))
    assert (again.code, again.reasons) == (Code.APPLIED, decision.reasons)


def test_pause_is_refused_during_a_cancel() -> None:
    before = facts(Status.RUNNING, owned=True, cancelling=True)
    decision = decide(Pause(), before)
    assert decision.code is Code.ILLEGAL_TRANSITION
    assert decision.stop == "cancel"
    assert untouched(decision, before)


# resume


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING])
def test_resume_of_what_is_not_paused_is_refused(status: Status, *, owned: bool) -> None:
    before = facts(status, owned=owned)
    decision = decide(Resume(), before)
    assert decision.code is Code.ILLEGAL_TRANSITION
    assert decision.message == f"Task t is {status}, not paused."
    assert untouched(decision, before)


@pytest.mark.parametrize("code", sorted(lifecycle.RESUMABLE))
@pytest.mark.parametrize(("started", "status"), [(True, Status.RUNNING), (False, Status.QUEUED)])
def test_resume_removes_its_reasons_and_goes_on(code: ReasonCode, status: Status, *, started: bool) -> None:
    decision = decide(Resume(), facts(Status.PAUSED, reason(code), started=started))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, status, ())
    assert decision.wake


def test_resume_stays_paused_while_another_reason_is_left() -> None:
    decision = decide(Resume(), facts(Status.PAUSED, OPERATOR, APPROVAL, UNKNOWN))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.PAUSED, (APPROVAL, UNKNOWN))
    assert not decision.wake
    assert decision.message.endswith("It waits for: approval (do approval); outcome_unknown (do outcome_unknown)")


def test_resume_alone_answers_no_question() -> None:
    before = facts(Status.PAUSED, APPROVAL)
    decision = decide(Resume(), before)
    assert decision.code is Code.ILLEGAL_TRANSITION
    assert "approval (do approval)" in decision.message
    assert untouched(decision, before)


def test_resume_takes_back_a_pause_that_the_actor_has_not_carried_out() -> None:
    paused = decide(Pause(), facts(Status.RUNNING, owned=True))
    assert paused.stop == "pause"
    resumed = decide(Resume(), facts(Status.RUNNING, *paused.reasons, owned=True))
    assert (resumed.code, resumed.status, resumed.reasons, resumed.stop) == (Code.APPLIED, Status.RUNNING, (), "")


def test_a_paused_task_without_a_reason_goes_on() -> None:
    assert decide(Resume(), facts(Status.PAUSED)).status is Status.RUNNING


# cancel


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.PAUSED])
def test_cancel_without_an_actor_cancels_at_once(status: Status) -> None:
    before = facts(status, APPROVAL) if status is Status.PAUSED else facts(status)
    decision = decide(Cancel(), before)
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.CANCELLED, ())
    assert not decision.cancelling
    assert not decision.wake


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.PAUSED])
def test_cancel_with_an_actor_tells_it_to_stop(status: Status) -> None:
    decision = decide(Cancel(), facts(status, owned=True))
    assert (decision.code, decision.status, decision.stop) == (Code.APPLIED, status, "cancel")
    assert decision.cancelling


def test_a_second_cancel_is_a_yes() -> None:
    decision = decide(Cancel(), facts(Status.RUNNING, owned=True, cancelling=True))
    assert (decision.code, decision.stop, decision.cancelling) == (Code.APPLIED, "cancel", True)


# signal, and the end of a child


@pytest.mark.parametrize("command", [Signal(name="go"), ChildEnded(child="c", status=Status.SUCCEEDED)])
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.PAUSED, Status.FAILED])
def test_a_signal_is_kept_and_wakes_what_waits(status: Status, command: AnyCommand | Internal, *, owned: bool) -> None:
    before = facts(status, owned=owned)
    decision = decide(command, before)
    assert decision.code is Code.APPLIED
    assert (decision.status, decision.reasons) == (status, ())
    assert decision.wake is (status is Status.RUNNING and not owned)


# submit


def test_a_submit_in_the_mailbox_is_the_first_one_or_a_duplicate() -> None:
    assert decide(Submit(kind="k"), facts(Status.QUEUED, started=False)).code is Code.APPLIED
    for status in Status:
        before = facts(status)
        decision = decide(Submit(kind="k"), before)
        assert decision.code is Code.DUPLICATE
        assert decision.ok
        assert untouched(decision, before)


# ended


@pytest.mark.parametrize("command", COMMANDS[1:])
@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED])
def test_nothing_changes_what_has_ended_for_good(status: Status, command: AnyCommand | Internal) -> None:
    before = facts(status)
    decision = decide(command, before)
    was = "was cancelled" if status is Status.CANCELLED else "succeeded"
    assert decision.code is Code.TOO_LATE
    assert decision.message == f"Task t {was} at 2029-12-31T23:59:59.000500Z. Nothing was changed."
    assert untouched(decision, before)


@pytest.mark.parametrize(
    ("command", "said"), [(Pause(), "could be paused"), (Resume(), "submit it again under another id"), (Cancel(), "could be cancelled")]
)
def test_a_failed_task_refuses_what_is_for_living_ones(command: AnyCommand, said: str) -> None:
    before = facts(Status.FAILED)
    decision = decide(command, before)
    assert decision.code is Code.ILLEGAL_TRANSITION
    assert said in decision.message
    assert untouched(decision, before)


# what holds whatever comes


any_facts = st.builds(
    Facts,
    task_id=st.just("t"),
    status=st.sampled_from(Status),
    reasons=st.lists(st.sampled_from(ReasonCode), unique=True).map(lambda codes: tuple(map(reason, codes))),
    owned=st.booleans(),
    started=st.booleans(),
    cancelling=st.booleans(),
    ended_at=st.none() | st.just(ENDED_AT),
)


@given(any_facts, st.lists(st.sampled_from(COMMANDS), max_size=8))
def test_whatever_comes_the_table_is_kept(before: Facts, commands: list[AnyCommand | Internal]) -> None:
    for command in commands:
        decision = apply(before, command, now=NOW)
        check_transition(before.status, decision.status)
        assert decision.message
        if before.owned:
            assert not decision.wake
            assert decision.status is before.status or isinstance(command, Resume)
        else:
            assert decision.stop == ""
        if before.cancelling and before.owned:
            assert decision.cancelling
            assert decision.stop == "cancel"
        if decision.code not in {Code.APPLIED, Code.DUPLICATE}:
            assert untouched(decision, before)
        before = msgspec.structs.replace(
            before, status=decision.status, reasons=decision.reasons, cancelling=decision.cancelling
        )
