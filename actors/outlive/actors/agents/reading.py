"""Reads what a model chose: each choice becomes a part of the decision, or a problem that the model is told. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, cast

import msgspec

from outlive.actors.agents.decisions import Call, Question, Recall
from outlive.protocol import codec
from outlive.protocol.arguments import Arguments
from outlive.protocol.plan import Item, Plan, PlanInvalid
from outlive.protocol.tools import AnyKind, AnyTool

PLAN: Final = "make_plan"
ASK: Final = "ask_person"
RECALL: Final = "recall"
FINISH: Final = "finish"
WORDS: Final = frozenset({PLAN, ASK, RECALL, FINISH})
"""What a model may choose besides the agent's tools; no tool may have such a name."""

ITEM: Final = "plan_item"
"""The parameter that every offered tool has besides its own."""

TOGETHER: Final = 16
"""Calls of one decision that run side by side; a model that wants more decides again."""

PROBLEMS: Final = 8
"""What is told of an answer that cannot be used: the rest is counted."""


class PlanWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``make_plan``."""

    items: list[Item]
    why: str = ""


class AskWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``ask_person``."""

    question: str
    choices: list[str] = []


class RecallWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The arguments of ``recall``."""

    step: str
    start: int = 0


Ability: TypeAlias = AnyTool | AnyKind
"""What a model may call: a tool, or a kind whose task is then a child."""


@dataclass(slots=True)
class Rules:
    """What choices are checked against.

    Attributes:
        tools: by name.
        output: the argument ``output`` of ``finish`` with its type.
        plan: the plan in force; None = none yet.
        reached: ids of items whose last step succeeded.
        steps: ids of steps whose results can be recalled.
        needs_plan: nothing is called before there is a plan.
    """

    tools: Mapping[str, Ability]
    output: Arguments
    plan: Plan | None
    reached: frozenset[str]
    steps: Mapping[str, object]
    needs_plan: bool


@dataclass(slots=True)
class Read:
    """What could be used of an answer, and what could not."""

    calls: list[Call] = field(default_factory=list[Call])
    plan: list[Item] | None = None
    why: str = ""
    question: Question | None = None
    recalls: list[Recall] = field(default_factory=list[Recall])
    finished: bool = False
    output: Any = None
    problems: list[str] = field(default_factory=list[str])


def read(chosen: Sequence[tuple[str, Any]], text: str, rules: Rules) -> Read:
    """Check choices, each a name with arguments as the model wrote them, in their order.

    Nothing is believed: names, types, plan items and their order are checked here, once, and what is recorded is what
    passed. `text` is what the model said besides.
    """
    found = Read()
    for name, arguments in sorted(
        chosen, key=lambda choice: choice[0] != PLAN
    ):  # what is called belongs to the new plan
        try:
            _take(found, name, arguments, rules)
        except (codec.NotStorable, msgspec.ValidationError, PlanInvalid, Unusable) as error:
            found.problems.append(f"{name[:64]}: {error}"[:500])
    if len(found.problems) > PROBLEMS:
        found.problems[PROBLEMS:] = [f"{len(found.problems) - PROBLEMS} more choices could not be used"]
    if found.finished and (found.calls or found.question):
        found.finished, found.output = False, None
        found.problems.append("finish: choose it alone, when nothing else is left to do")
    if not chosen:
        said = f": {text[:200]!r}" if text else ""
        found.problems.append(f"you chose nothing{said}. Choose one of the tools; {FINISH} when the work is done")
    return found


class Unusable(ValueError):
    """A choice that cannot be carried out; the message is for the model."""


def _take(found: Read, name: str, arguments: Any, rules: Rules) -> None:
    if not isinstance(arguments, dict):
        raise Unusable(f"its arguments are no JSON object: {str(arguments)[:200]!r}")
    given = cast("dict[str, Any]", arguments)
    match name:
        case "make_plan":
            _plan(found, codec.unpack(codec.encode(given), PlanWords), rules)
        case "ask_person":
            words = codec.unpack(codec.encode(given), AskWords)
            if not words.question:
                raise Unusable("the question is empty")
            choices = list(dict.fromkeys(choice for choice in words.choices if choice))
            found.question = Question(text=words.question[:2000], choices=choices)
        case "recall":
            again = codec.unpack(codec.encode(given), RecallWords)
            if again.step not in rules.steps:
                raise Unusable(f"there is no step {again.step[:64]!r}")
            if len(found.recalls) >= TOGETHER:
                raise Unusable(f"at most {TOGETHER} at once")
            found.recalls.append(Recall(step=again.step, start=max(0, again.start)))
        case "finish":
            codec.unpack(codec.encode(rules.output.decode(codec.encode(given))["output"]), rules.output.types["output"])
            found.finished, found.output = True, given.get("output")
        case _:
            found.calls.append(_call(found, name, given, rules))


def _plan(found: Read, words: PlanWords, rules: Rules) -> None:
    _new(words.items, rules)  # it checks itself
    found.plan, found.why = words.items, words.why[:500]


def _new(items: list[Item], rules: Rules) -> Plan:
    return Plan(version=rules.plan.version + 1 if rules.plan is not None else 1, items=items)


def _call(found: Read, name: str, given: dict[str, Any], rules: Rules) -> Call:
    tool = rules.tools.get(name)
    if tool is None:
        raise Unusable(f"there is no such tool. There are: {', '.join(sorted(rules.tools))}")
    if len(found.calls) >= TOGETHER:
        raise Unusable(f"at most {TOGETHER} calls at once")
    plan = rules.plan if found.plan is None else _new(found.plan, rules)
    if rules.needs_plan and plan is None:
        raise Unusable(f"make a plan first, with {PLAN}")
    item = given.pop(ITEM, None)
    if plan is not None:
        _check_item(item, plan, rules.reached)
    bound = tool.arguments.decode(codec.encode(given))
    arguments = codec.decode(tool.arguments.encode(bound))
    return Call(tool=name, arguments=arguments, item=item if plan is not None else None)


def _check_item(item: Any, plan: Plan, reached: frozenset[str]) -> None:
    known = {each.id: each for each in plan.items}
    if not isinstance(item, str) or item not in known:
        raise Unusable(f"{ITEM} {str(item)[:64]!r} is no item of the plan. There are: {', '.join(known)}")
    if not reached.issuperset(known[item].after):
        raise Unusable(f"item {item!r} waits for: {', '.join(known[item].after)}")
