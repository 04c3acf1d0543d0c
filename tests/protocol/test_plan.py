"""Plans: what may be one, and how far an item is: by its steps alone."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import codec
from outlive.protocol.plan import Item, ItemStatus, Plan, PlanInvalid, check, number, progress_text, record, statuses

ABC = [Item("list", "list the files"), Item("read", "read them", ["list"]), Item("report", "report", ["list", "read"])]
PLAN = Plan(1, ABC)


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "a plan has 1 to 200 items, this one has 0"),
        ([Item(f"i{n}", "x") for n in range(201)], "a plan has 1 to 200 items, this one has 201"),
        ([Item("a b", "x")], "item 'a b' is not allowed: 1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _"),
        ([Item("a", "x"), Item("a", "y")], "item 'a' comes twice: give each its own id"),
        ([Item("a", "")], "the text of item 'a' has 0 characters: give 1 to 1000, no NUL"),
        ([Item("a", "x" * 1001)], "the text of item 'a' has 1001 characters: give 1 to 1000, no NUL"),
        ([Item("a", "x\0")], "the text of item 'a' has 2 characters: give 1 to 1000, no NUL"),
        ([Item("a", "x", ["b"])], "item 'a' comes after 'b', which the plan does not have"),
        ([Item("a", "x", ["a"])], "items a wait for each other: none of them could begin"),
        (
            [Item("a", "x", ["c"]), Item("b", "x", ["a"]), Item("c", "x", ["b"]), Item("d", "x")],
            "items a, b, c wait for each other: none of them could begin",
        ),
        (
            [Item("a", "x", ["b"]), Item("a", "")],
            ("item 'a' comes twice: give each its own id; the text of item 'a' has 0 characters: give 1 to 1000, no NUL; "
            "item 'a' comes after 'b', which the plan does not have"),
        ),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused_with_every_reason(items: list[Item], said: str) -> None:
    with pytest.raises(PlanInvalid) as refused:
        check(items)
    assert str(refused.value) == said
    with pytest.raises(PlanInvalid):
        Plan(1, items)
    body = codec.encode({"version": 1, "items": items})
    with pytest.raises(msgspec.ValidationError):  # a stored one, or one from the wire
        msgspec.json.decode(body, type=Plan)


def test_versions_begin_with_one() -> None:
    with pytest.raises(PlanInvalid, match="version 0 of a plan: versions begin with 1"):
        Plan(0, ABC)


def test_a_plan_comes_back_as_it_was() -> None:
    plan = Plan(3, ABC, "shorter", "ann")
    body = codec.encode(plan)
    assert msgspec.json.decode(body, type=Plan) == plan
    assert codec.encode(msgspec.json.decode(body, type=Plan)) == body
    assert (plan.item("read"), plan.item("nope"), plan.item(None)) == (ABC[1], None, None)


def test_an_item_is_as_far_as_its_steps() -> None:
    steps = [
        ("list", "completed"), ("read", "completed"), ("read", "failed"), (None, "failed"), ("other", "failed"),
    ]  # fmt: skip
    assert [*statuses(PLAN, steps).values()] == [ItemStatus.DONE, ItemStatus.FAILED, ItemStatus.WAITING]
    steps.append(("read", "waiting"))
    assert statuses(PLAN, steps)["read"] is ItemStatus.DOING
    assert statuses(PLAN, [("read", "started"), ("read", "completed")])["read"] is ItemStatus.DOING
    assert statuses(PLAN, [("read", "failed"), ("read", "skipped")])["read"] is ItemStatus.DONE
    assert statuses(PLAN, [("read", "unknown")])["read"] is ItemStatus.FAILED
    assert statuses(PLAN, [("list", "completed")], "list")["list"] is ItemStatus.DOING


@given(st.lists(st.tuples(st.sampled_from(["list", "read"]), st.sampled_from(["completed", "failed", "skipped"]))))
def test_the_last_word_of_the_last_step_counts(steps: list[tuple[str, str]]) -> None:
    found = statuses(PLAN, steps)
    for item in ("list", "read", "report"):
        last = [status for name, status in steps if name == item][-1:]
        expected = {"completed": "done", "skipped": "done", "failed": "failed"}.get("".join(last), "waiting")
        assert found[item] == expected


def test_what_a_later_plan_has_dropped_is_shown_last() -> None:
    later = Plan(2, [Item("list", "list all files"), Item("mail", "mail it")], "no report", "ann")
    shown = record([PLAN, later], [("list", "completed"), ("read", "completed")])
    assert shown is not None
    assert (shown.version, shown.note, shown.by) == (2, "no report", "ann")
    assert [(item.id, str(item.status)) for item in shown.items] == [
        ("list", "done"), ("mail", "waiting"), ("read", "dropped"), ("report", "dropped"),
    ]  # fmt: skip
    assert shown.items[0].text == "list all files"
    assert record([], []) is None


def test_progress_says_where_in_the_plan() -> None:
    assert progress_text(PLAN, "read", "reading a.txt") == "step 2 of 3: reading a.txt"
    assert progress_text(PLAN, "nope", "reading a.txt") == "reading a.txt"
    assert progress_text(PLAN, None, "reading a.txt") == "reading a.txt"
    assert progress_text(None, "read", "reading a.txt") == "reading a.txt"
    assert (number(PLAN, "report"), number(PLAN, "nope"), number(None, "read"), number(PLAN, None)) == (3, 0, 0, 0)


def test_a_plan_fits_into_a_message() -> None:
    with pytest.raises(PlanInvalid, match=r"the items have 15\d,\d\d\d bytes as JSON, 131,072 are allowed"):
        check([Item(f"i{n}", "x" * 1000) for n in range(150)])
