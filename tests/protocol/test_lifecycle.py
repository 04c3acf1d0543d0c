"""Every cell of the table of commands and states, with and without an actor in memory."""

import re
from datetime import UTC, datetime
from itertools import product
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import lifecycle
from outlive.protocol.answers import Code
from outlive.protocol.commands import (
    AnyCommand,
    Approve,
    Cancel,
    ChildEnded,
    EditPlan,
    Internal,
    Pause,
    Reject,
    Resolve,
    Resume,
    Retry,
    Signal,
    Skip,
    Submit,
)
from outlive.protocol.lifecycle import TRANSITIONS, Decision, Facts, IllegalTransition, apply, check_transition
from outlive.protocol.plan import Item
from outlive.protocol.task import FINAL, Reason, ReasonCode, Status

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ENDED_AT = datetime(2029, 12, 31, 23, 59, 59, 500, tzinfo=UTC)


def reason(code: ReasonCode) -> Reason:
    return Reason(reason=code, since=NOW, do=f"do {code}")


OPERATOR = reason(ReasonCode.OPERATOR)
APPROVAL = reason(ReasonCode.APPROVAL)
UNKNOWN = reason(ReasonCode.OUTCOME_UNKNOWN)
ASKED = Reason(
    reason=ReasonCode.APPROVAL, since=NOW, do="outlive approve t 4", step_id="4", operation_id="1", digest="a" * 32
)  # fmt: skip
LOST = Reason(
    reason=ReasonCode.OUTCOME_UNKNOWN, since=NOW, do="outlive resolve t 7:2", step_id="7", operation_id="2"
)  # fmt: skip
APPROVE = Approve(operation_id="4", by="ann")
REJECT = Reject(operation_id="4:1", by="ann", reason="too much")
RESOLVE = Resolve(operation_id="7:2", verdict="did_not_happen")
RETRY = Retry(step_id="4", by="ann")
SKIP = Skip(step_id="4", result=3)
EDIT = EditPlan(plan_version=2, items=[Item("a", "do it")], by="ann")
GOES_ON = (Resume, Approve, Reject, Resolve, Retry, Skip)
ANSWERS: list[tuple[AnyCommand, Reason]] = [(APPROVE, ASKED), (REJECT, ASKED), (RESOLVE, LOST)]
COMMANDS: list[AnyCommand | Internal] = [
    Submit(kind="k"), Pause(by="ann"), Resume(), Cancel(), Signal(name="go"), ChildEnded(child="c", status=Status.FAILED),
    APPROVE, REJECT, RESOLVE, RETRY, SKIP, EDIT,
]  # fmt: skip


def facts(
    status: Status,
    *reasons: Reason,
    owned: bool = False,
    started: bool = True,
    cancelling: bool = False,
    step: str | None = None,
    answered: str = "",
) -> Facts:
    return Facts(
        task_id="t", status=status, reasons=reasons, owned=owned, started=started, cancelling=cancelling,
        ended_at=ENDED_AT if status in FINAL else None, step=step, answered=answered,
    )  # fmt: skip


def decide(command: AnyCommand | Internal, before: Facts) -> Decision:
    return apply(before, command, now=NOW)


def untouched(decision: Decision, before: Facts) -> bool:
    return (decision.status, decision.reasons, decision.cancelling, decision.wake) == (
        before.status, before.reasons, before.cancelling, False,
    )  # fmt: skip


def documented() -> set[tuple[str, str]]:
    """The changes of status that `protocol/README.md` allows."""
    text = (Path(__file__).parents[2] / "protocol" / "README.md").read_text()
    rows = text.partition("| from | to |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert {old for old, _ in cells} == {status.value for status in Status}
    return {(old, new) for old, news in cells for new in re.sub(r" \(.*?\)", "", news).split(", ") if new}


@pytest.mark.parametrize(("old", "new"), [*product(Status, Status)])
def test_only_the_table_changes_a_status(old: Status, new: Status) -> None:
    if old is new or (old.value, new.value) in documented():
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


UNDO = Cancel(compensate=True)
STOP_UNDOING = Cancel(compensate=False)
UNDOING = Reason(
    reason=ReasonCode.APPROVAL, since=NOW, do="outlive approve t undo-4", step_id="undo-4", operation_id="1"
)  # fmt: skip


@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED, Status.FAILED])
def test_a_cancel_that_undoes_wants_a_worker(status: Status) -> None:
    decision = decide(UNDO, facts(status, ASKED, started=True))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.RUNNING, ())
    assert (decision.cancelling, decision.compensating, decision.wake) == (True, True, True)


def test_a_task_that_never_began_has_nothing_to_undo() -> None:
    decision = decide(UNDO, facts(Status.QUEUED, started=False))
    assert (decision.code, decision.status, decision.compensating) == (Code.APPLIED, Status.CANCELLED, False)


def test_an_actor_stops_before_it_undoes() -> None:
    decision = decide(UNDO, facts(Status.RUNNING, owned=True))
    assert (decision.code, decision.status, decision.stop) == (Code.APPLIED, Status.RUNNING, "cancel")
    assert decision.cancelling and decision.compensating


@pytest.mark.parametrize("owned", [False, True])
def test_undoing_is_stopped_by_those_words_alone(*, owned: bool) -> None:
    before = msgspec.structs.replace(facts(Status.RUNNING, owned=owned, cancelling=True), compensating=True)
    for again in (Cancel(), UNDO):
        decision = decide(again, before)
        assert (decision.code, decision.status, decision.compensating) == (Code.APPLIED, Status.RUNNING, True)
        assert "--no-compensate" in decision.message
    decision = decide(STOP_UNDOING, before)
    assert (decision.code, decision.compensating) == (Code.APPLIED, False)
    assert (decision.status, decision.stop) == ((Status.RUNNING, "cancel") if owned else (Status.CANCELLED, ""))


def test_what_undoes_an_effect_can_be_approved_during_the_cancel() -> None:
    before = msgspec.structs.replace(facts(Status.PAUSED, UNDOING, started=True, cancelling=True), compensating=True)
    decision = decide(Approve(operation_id="undo-4"), before)
    assert (decision.code, decision.status, decision.wake) == (Code.APPLIED, Status.RUNNING, True)
    assert decision.cancelling and decision.compensating
    assert decide(APPROVE, before).code is Code.ILLEGAL_TRANSITION
    assert decide(Pause(), before).code is Code.ILLEGAL_TRANSITION


@pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED])
def test_too_late_to_undo_says_what_is_left_to_do(status: Status) -> None:
    decision = decide(UNDO, facts(status))
    assert decision.code is Code.TOO_LATE
    assert decision.message.endswith("What it did stands, and can be undone by hand only: outlive receipt t")


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


# approve, reject, resolve


@pytest.mark.parametrize(("command", "asked"), ANSWERS)
@pytest.mark.parametrize("owned", [False, True])
def test_an_answer_removes_its_reason_and_a_paused_task_goes_on(
    command: AnyCommand, asked: Reason, *, owned: bool
) -> None:
    decision = decide(command, facts(Status.PAUSED, asked, owned=owned))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.RUNNING, ())
    assert decision.wake is not owned
    assert decision.message.endswith("Task t goes on.")


@pytest.mark.parametrize(("command", "asked"), ANSWERS)
@pytest.mark.parametrize("owned", [False, True])
def test_an_answer_to_a_running_task_is_stored_and_wakes_it(command: AnyCommand, asked: Reason, *, owned: bool) -> None:
    decision = decide(command, facts(Status.RUNNING, UNKNOWN, asked, owned=owned))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.RUNNING, (UNKNOWN,))
    assert decision.wake is not owned


@pytest.mark.parametrize(("command", "asked"), ANSWERS)
def test_an_answered_task_stays_paused_while_another_reason_is_left(command: AnyCommand, asked: Reason) -> None:
    decision = decide(command, facts(Status.PAUSED, OPERATOR, asked))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.PAUSED, (OPERATOR,))
    assert not decision.wake
    assert "Task t stays paused. It waits for: operator (do operator)" in decision.message


@pytest.mark.parametrize(("command", "asked"), ANSWERS)
def test_a_pause_that_is_not_carried_out_yet_stays_after_an_answer(command: AnyCommand, asked: Reason) -> None:
    decision = decide(command, facts(Status.RUNNING, OPERATOR, asked, owned=True))
    assert (decision.code, decision.stop, decision.reasons) == (Code.APPLIED, "pause", (OPERATOR,))


@pytest.mark.parametrize(("command", "asked"), ANSWERS)
@pytest.mark.parametrize(
    ("status", "said"),
    [
        (Status.QUEUED, "Task t is queued: nothing of it waits for a person yet."),
        (Status.FAILED, "Task t failed at 2029-12-31T23:59:59.000500Z: nothing of it waits for an answer."),
    ],
)
def test_nothing_is_answered_before_it_starts_and_after_it_failed(
    status: Status, said: str, command: AnyCommand, asked: Reason
) -> None:
    before = facts(status, asked)
    decision = decide(command, before)
    assert (decision.code, decision.message) == (Code.ILLEGAL_TRANSITION, said)
    assert untouched(decision, before)


@pytest.mark.parametrize(
    "command",
    [
        Approve(operation_id="4:2"),
        Approve(operation_id="5"),
        Approve(operation_id="7:2"),
        Reject(operation_id="40"),
        Resolve(operation_id="7", verdict="give_up"),
        Resolve(operation_id="4", verdict="give_up"),
    ],
)
@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED])
def test_an_answer_to_a_question_that_is_not_asked_is_stale(status: Status, command: AnyCommand) -> None:
    before = facts(status, ASKED, LOST)
    decision = decide(command, before)
    assert decision.code is Code.STALE
    assert "outlive approve t 4" in decision.message
    assert untouched(decision, before)


def test_the_second_answer_is_told_who_came_first() -> None:
    decision = decide(APPROVE, facts(Status.RUNNING, answered="bob rejected it at 2030-01-01T00:00:00Z"))
    assert (decision.code, decision.message) == (
        Code.STALE,
        "Operation 4 of task t does not wait for an approval: bob rejected it at 2030-01-01T00:00:00Z.",
    )


@pytest.mark.parametrize("kind", [Approve, Reject])
def test_an_approval_is_for_exactly_these_arguments(kind: type[Approve | Reject]) -> None:
    before = facts(Status.PAUSED, ASKED)
    decision = decide(kind(operation_id="4", digest="b" * 32), before)
    assert decision.code is Code.STALE
    assert "has other arguments" in decision.message
    assert untouched(decision, before)
    assert decide(kind(operation_id="4", digest="a" * 32), before).code is Code.APPLIED


@pytest.mark.parametrize("command", [APPROVE, REJECT])
def test_a_cancel_makes_approvals_void(command: AnyCommand) -> None:
    before = facts(Status.RUNNING, ASKED, owned=True, cancelling=True)
    decision = decide(command, before)
    assert (decision.code, decision.stop) == (Code.ILLEGAL_TRANSITION, "cancel")
    assert untouched(decision, before)


def test_an_unknown_outcome_is_resolved_during_a_cancel() -> None:
    decision = decide(RESOLVE, facts(Status.RUNNING, LOST, owned=True, cancelling=True))
    assert (decision.code, decision.stop, decision.reasons) == (Code.APPLIED, "cancel", ())


# retry


@pytest.mark.parametrize("step", [None, "failed", "unknown"])
@pytest.mark.parametrize("command", [RETRY, Retry()])
def test_retry_reopens_a_failed_task(command: Retry, step: str | None) -> None:
    decision = decide(command, facts(Status.FAILED, step=step))
    assert (decision.code, decision.status, decision.wake) == (Code.APPLIED, Status.RUNNING, True)


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.PAUSED])
def test_only_a_failed_task_is_retried(status: Status, *, owned: bool) -> None:
    before = facts(status, UNKNOWN, owned=owned)
    decision = decide(RETRY, before)
    assert (decision.code, decision.message) == (
        Code.ILLEGAL_TRANSITION,
        f"Task t is {status}: only a failed task is retried. It waits for: outcome_unknown (do outcome_unknown)",
    )
    assert untouched(decision, before)


@pytest.mark.parametrize("command", [RETRY, SKIP])
@pytest.mark.parametrize("step", ["completed", "skipped"])
@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED, Status.FAILED])
def test_the_result_of_a_step_stands(status: Status, step: str, command: AnyCommand) -> None:
    before = facts(status, step=step)
    decision = decide(command, before)
    if isinstance(command, Skip) or status is Status.FAILED:
        said = f"Step 4 of task t is {step}: its result stands. To see it: outlive show t --all"
        assert (decision.code, decision.message) == (Code.STALE, said)
    assert untouched(decision, before)


# skip


def test_skip_reopens_a_failed_task() -> None:
    decision = decide(SKIP, facts(Status.FAILED, step="failed"))
    assert (decision.code, decision.status, decision.wake) == (Code.APPLIED, Status.RUNNING, True)


@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED])
def test_skip_answers_all_that_its_step_waits_for(status: Status, *, owned: bool) -> None:
    decision = decide(SKIP, facts(status, ASKED, owned=owned))
    assert (decision.code, decision.status, decision.reasons) == (Code.APPLIED, Status.RUNNING, ())
    assert decision.wake is not owned


def test_skip_leaves_other_reasons() -> None:
    decision = decide(SKIP, facts(Status.PAUSED, LOST, ASKED))
    assert (decision.status, decision.reasons, decision.wake) == (Status.PAUSED, (LOST,), False)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.PAUSED])
def test_a_step_that_waits_for_no_person_is_not_skipped(status: Status) -> None:
    before = facts(status, LOST)
    decision = decide(SKIP, before)
    assert decision.code is Code.STALE
    assert decision.message.startswith("Step 4 of task t waits for no person. It waits for: outcome_unknown")
    assert untouched(decision, before)


@pytest.mark.parametrize(("status", "cancelling"), [(Status.QUEUED, False), (Status.RUNNING, True)])
def test_skip_is_refused_before_the_start_and_during_a_cancel(status: Status, *, cancelling: bool) -> None:
    before = facts(status, ASKED, owned=cancelling, cancelling=cancelling)
    decision = decide(SKIP, before)
    assert decision.code is Code.ILLEGAL_TRANSITION
    assert untouched(decision, before)


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
    ("command", "said"),
    [
        (Pause(), "could be paused"),
        (Resume(), "When the cause is mended: outlive retry t"),
        (Cancel(), "could be cancelled"),
    ],
)
def test_a_failed_task_refuses_what_is_for_living_ones(command: AnyCommand, said: str) -> None:
    before = facts(Status.FAILED)
    decision = decide(command, before)
    assert decision.code is Code.ILLEGAL_TRANSITION
    assert said in decision.message
    assert untouched(decision, before)


# new operations


CORRECT = Retry(step_id="4", args={"to": "me"}, by="ann")


def step(stands: str | None, name: str = "send_mail", result: str = "", operation: str = "1") -> Facts:
    """A failed task with a step 4."""
    return msgspec.structs.replace(facts(Status.FAILED, step=stands), name=name, result=result, operation=operation)


def test_a_step_that_failed_is_tried_with_other_arguments() -> None:
    decision = decide(CORRECT, step("failed"))
    assert (decision.code, decision.status, decision.wake) == (Code.APPLIED, Status.RUNNING, True)
    assert decision.message == "Task t goes on from its checkpoint, step 4 with the arguments given by ann."


@pytest.mark.parametrize(
    ("before", "code", "said"),
    [
        (step(None), Code.STALE, "Nothing is known of a step 4 of task t that has failed."),
        (step("completed", result="7"), Code.STALE, "Step 4 of task t is completed: its result stands: 7"),
        (step("completed"), Code.STALE, "its result stands. To see it: outlive show t --all"),
        (step("unknown"), Code.STALE, "First have that found out: outlive retry t 4"),
        (step("failed", "wait_for go"), Code.INVALID, "no call of a tool"),
        (step("failed", "sleep"), Code.INVALID, "no call of a tool"),
    ],
)
def test_nothing_else_is_tried_with_other_arguments(before: Facts, code: Code, said: str) -> None:
    decision = decide(CORRECT, before)
    assert decision.code is code
    assert said in decision.message
    assert untouched(decision, before)


def test_an_effect_that_did_not_happen_is_sent_again_under_a_new_key() -> None:
    decision = decide(msgspec.structs.replace(RESOLVE, new_operation=True), facts(Status.PAUSED, LOST))
    assert (decision.code, decision.status) == (Code.APPLIED, Status.RUNNING)
    assert "did not happen, sent again under a new key" in decision.message


@pytest.mark.parametrize("owned", [True, False])
def test_a_word_on_an_earlier_operation_is_told_the_present_one(*, owned: bool) -> None:
    asked = msgspec.structs.replace(ASKED, operation_id="2")
    before = msgspec.structs.replace(facts(Status.RUNNING, asked, owned=owned), operation="2")
    for command in (APPROVE, REJECT, Resolve(operation_id="4:1", verdict="give_up")):
        decision = decide(command, before)
        assert decision.code is Code.STALE
        assert "the current operation of step 4 is 4:2" in decision.message
        assert untouched(decision, before)


# what holds whatever comes


any_facts = st.builds(
    Facts,
    task_id=st.just("t"),
    status=st.sampled_from(Status),
    reasons=st.lists(st.sampled_from([*map(reason, ReasonCode), ASKED, LOST]), unique_by=id).map(tuple),
    owned=st.booleans(),
    started=st.booleans(),
    cancelling=st.booleans(),
    ended_at=st.none() | st.just(ENDED_AT),
    step=st.none() | st.sampled_from(["completed", "failed"]),
)


@given(any_facts, st.lists(st.sampled_from(COMMANDS), max_size=8))
def test_whatever_comes_the_table_is_kept(before: Facts, commands: list[AnyCommand | Internal]) -> None:
    for command in commands:
        decision = apply(before, command, now=NOW)
        check_transition(before.status, decision.status)
        assert decision.message
        if before.owned:
            assert not decision.wake
            assert decision.status is before.status or isinstance(command, GOES_ON)
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


def test_a_question_takes_the_first_fitting_answer_in_every_state() -> None:
    asked = Reason(
        reason=ReasonCode.QUESTION, since=NOW, do="outlive answer t 4 TEXT", step_id="4", choices=["yes", "no"]
    )
    yes, other = Signal(name="answer-4", value="yes", by="ann"), Signal(name="answer-4", value="maybe")
    paused = Facts(task_id="t", status=Status.PAUSED, reasons=(asked,), started=True)
    answered = apply(paused, yes, now=NOW)
    assert (answered.code, answered.status, answered.reasons, answered.wake) == (Code.APPLIED, Status.RUNNING, (), True)
    assert answered.message == "Question 4 is answered by ann. Task t goes on."
    two = apply(msgspec.structs.replace(paused, reasons=(asked, APPROVAL)), yes, now=NOW)
    assert (two.status, two.reasons, two.wake) == (Status.PAUSED, (APPROVAL,), False)
    owned = apply(msgspec.structs.replace(paused, status=Status.RUNNING, owned=True), yes, now=NOW)
    assert (owned.code, owned.reasons, owned.wake, owned.stop) == (Code.APPLIED, (), False, "")
    assert apply(paused, other, now=NOW).code is Code.INVALID
    for status in (Status.QUEUED, Status.RUNNING, Status.FAILED):
        late = apply(Facts(task_id="t", status=status, answered="ann answered it at T"), yes, now=NOW)
        assert (late.code, late.status, "ann answered it at T" in late.message) == (Code.STALE, status, True)
    assert apply(msgspec.structs.replace(paused, cancelling=True), yes, now=NOW).code is Code.ILLEGAL_TRANSITION
    assert apply(Facts(task_id="t", status=Status.SUCCEEDED), yes, now=NOW).code is Code.TOO_LATE


@pytest.mark.parametrize(
    ("status", "reasons", "code", "after"),
    [
        (Status.QUEUED, (), Code.APPLIED, Status.QUEUED), (Status.RUNNING, (), Code.APPLIED, Status.RUNNING),
        (Status.PAUSED, (APPROVAL,), Code.APPLIED, Status.PAUSED), (Status.FAILED, (), Code.APPLIED, Status.RUNNING),
        (Status.SUCCEEDED, (), Code.TOO_LATE, Status.SUCCEEDED), (Status.CANCELLED, (), Code.TOO_LATE, Status.CANCELLED),
    ],
)  # fmt: skip
def test_a_plan_is_changed_in_every_state_but_the_last(
    status: Status, reasons: tuple[Reason, ...], code: Code, after: Status
) -> None:
    before = Facts(task_id="t", status=status, reasons=reasons, started=True, plans=True, plan_version=2)
    decision = decide(EDIT, before)
    assert (decision.code, decision.status, decision.reasons) == (code, after, reasons)
    assert decision.wake == (status is Status.FAILED)
    if code is Code.APPLIED:
        assert decision.message.startswith("The plan of task t is version 3 now by ann")
        for version, said in ((1, "version 1"), (0, "none yet (version 0)")):
            stale = decide(EDIT, msgspec.structs.replace(before, plan_version=version))
            assert (stale.code, stale.status) == (Code.STALE, status)
            assert stale.message == (
                f"The plan of task t is {said}, not version 2. Look again: outlive edit-plan t --show"
            )
        assert decide(EDIT, msgspec.structs.replace(before, plans=False)).code is Code.INVALID
        assert decide(EDIT, msgspec.structs.replace(before, cancelling=True)).code is Code.ILLEGAL_TRANSITION


def test_an_edit_that_is_no_plan_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="item 'a' comes twice"):
        EditPlan(plan_version=1, items=[Item("a", "x"), Item("a", "y")])
