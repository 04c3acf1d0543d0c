from typing import Any

import pytest

from outlive.actors import App
from outlive.actors.agents.agent import output_of
from outlive.actors.agents.reading import Read, Rules, read
from outlive.protocol.plan import Item, Plan

app = App("reading")


@app.tool(read_only=True)
def look(path: str, depth: int = 1) -> str:
    return path


def _rules(plan: Plan | None = None, reached: frozenset[str] = frozenset(), *, needs_plan: bool = False) -> Rules:
    return Rules(
        tools={"look": look}, output=output_of("x", int), plan=plan, reached=reached, steps={"3": None},
        needs_plan=needs_plan,
    )  # fmt: skip


def _read(name: str, arguments: Any, rules: Rules | None = None) -> Read:
    return read([(name, arguments)], "", rules or _rules())


def test_a_call_is_taken_with_its_defaults_left_out() -> None:
    found = _read("look", {"path": "a", "depth": 1})

    assert [(call.tool, call.arguments) for call in found.calls] == [("look", {"path": "a"})]
    assert not found.problems


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("lok", {"path": "a"}, "there is no such tool. There are: look"),
        ("look", {}, "path"),
        ("look", {"path": 7}, "path"),
        ("look", {"path": "a", "deep": True}, "deep"),
        ("look", "not json {", "its arguments are no JSON object"),
        ("look", [1], "its arguments are no JSON object"),
        ("recall", {"step": "99"}, "there is no step '99'"),
        ("finish", {"output": "three"}, "output"),
        ("finish", {}, "output"),
        ("make_plan", {"items": []}, "1 to 200 items"),
        ("make_plan", {"items": [{"id": "a b", "text": "x"}]}, "is not allowed"),
        ("make_plan", {"items": [{"id": "a", "text": "x", "after": ["z"]}]}, "which the plan does not have"),
        ("ask_person", {"question": 5}, "question"),
    ],
)
def test_what_cannot_be_used_is_told_and_nothing_follows(name: str, arguments: Any, problem: str) -> None:
    found = _read(name, arguments)

    assert not (found.calls or found.plan or found.question or found.recalls or found.finished)
    assert len(found.problems) == 1
    assert problem in found.problems[0], found.problems
    assert found.problems[0].startswith(f"{name}: ")


def test_good_choices_beside_bad_ones_are_kept() -> None:
    found = read([("look", {"path": "a"}), ("nope", {}), ("look", {"path": "b"})], "", _rules())

    assert [call.arguments["path"] for call in found.calls] == ["a", "b"]
    assert len(found.problems) == 1


def test_finish_counts_only_when_it_is_chosen_alone() -> None:
    found = read([("look", {"path": "a"}), ("finish", {"output": 3})], "", _rules())

    assert found.calls
    assert not found.finished
    assert "choose it alone" in found.problems[0]


def test_plain_text_is_no_choice() -> None:
    assert "you chose nothing: 'I think so'" in read([], "I think so", _rules()).problems[0]


def test_a_call_names_an_item_whose_turn_it_is() -> None:
    plan = Plan(1, [Item("a", "first"), Item("b", "second", ["a"])])
    rules = _rules(plan)

    assert _read("look", {"path": "x", "plan_item": "a"}, rules).calls[0].item == "a"
    assert "no item of the plan. There are: a, b" in _read("look", {"path": "x"}, rules).problems[0]
    assert "item 'b' waits for: a" in _read("look", {"path": "x", "plan_item": "b"}, rules).problems[0]
    after = _rules(plan, frozenset({"a"}))
    assert _read("look", {"path": "x", "plan_item": "b"}, after).calls[0].item == "b"


def test_nothing_is_called_before_there_is_a_plan() -> None:
    assert "make a plan first" in _read("look", {"path": "x"}, _rules(needs_plan=True)).problems[0]


NEW = {"items": [{"id": "new", "text": "x"}, {"id": "then", "text": "y", "after": ["new"]}]}


@pytest.mark.parametrize("old", [None, Plan(1, [Item("old", "x")])])
@pytest.mark.parametrize("first", [True, False])
def test_what_is_called_along_with_a_new_plan_names_an_item_of_that_one(
    old: Plan | None, first: bool
) -> None:  # reason: a parameter of the test
    items: list[Any] = ["new", "old", "then", None, 7]
    calls = [("look", {"path": str(item), "plan_item": item}) for item in items]
    plan = ("make_plan", NEW)

    found = read([plan, *calls] if first else [*calls, plan], "", _rules(old, needs_plan=True))

    assert [item.id for item in found.plan or ()] == ["new", "then"]
    assert [(call.arguments["path"], call.item) for call in found.calls] == [("new", "new")]
    assert ["no item of the plan" in problem for problem in found.problems] == [True, False, True, True]
    assert "item 'then' waits for: new" in found.problems[1]


def test_without_a_plan_no_item_is_named() -> None:
    assert _read("look", {"path": "x", "plan_item": 7}).calls[0].item is None
