"""The request of one decision, made of facts under a budget. Pure: the same facts give the same text.

What is shown, in this order (old facts first, so that a provider's cache keeps the beginning):

    goal        always
    done        one line a step that is not shown whole, the oldest that fits first
    results     recalled ones, and the newest while they fit into half of the room
    plan        always, with what became of each item
    notes       always: why the last answer could not be used, what a person said

Room is given away in this order: fixed parts, results, lines from the newest back. What is left out is counted, and
comes back by `recall`. Text from tools is fenced: it is data, whatever it says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from outlive.actors.agents.decisions import Outline, Recall

LINE: Final = 240
"""Characters of a done step's line."""

PAGE: Final = 20_000
"""The most characters of one result in a request; `recall` pages on."""

BYTES_PER_TOKEN: Final = 3.5
"""An estimate on the high side for English and code; providers report what it really was."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that has ended.

    Attributes:
        step: its id.
        call: what was called, short.
        tool: its name.
        ok: it succeeded.
        text: its result or its failure.
    """

    step: str
    call: str
    tool: str
    ok: bool
    text: str


@dataclass(slots=True)
class Situation:
    """All facts that a decision may rest on.

    Attributes:
        goal: what the user wants.
        done: steps in the order in which they ended.
        plan: the plan's version and its lines.
        notes: what must be told once.
        recalls: results to be shown again.
        fixed: tokens that instructions and tools take.
    """

    goal: str
    done: Sequence[Done] = ()
    plan_version: int = 0
    plan: Sequence[str] = ()
    notes: Sequence[str] = ()
    recalls: Sequence[Recall] = ()
    fixed: int = 0
    by_step: Mapping[str, Done] = field(default_factory=dict[str, Done])


@dataclass(frozen=True, slots=True)
class Context:
    """A request: its text, and what it holds."""

    text: str
    outline: Outline


def tokens(text: str) -> int:
    """Estimate the tokens of a text."""
    return int(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN) + 1


def compose(situation: Situation, budget: int) -> Context:
    """Make the request that fits into so many tokens.

    Raises:
        ValueError: goal, plan, notes and tools alone do not fit; says how large they are.
    """
    fixed = situation.fixed + sum(map(tokens, (situation.goal, *situation.plan, *situation.notes))) + 60
    if fixed > budget:
        raise ValueError(
            f"goal, plan and tools take about {fixed:,} tokens of a context of {budget:,}: give the agent a larger one "
            "(context_tokens=...) or fewer tools"
        )
    room = budget - fixed
    results, shown, used = _results(situation, room // 2)
    lines, first = _lines(situation.done, room - used, frozenset(shown))
    dropped = len(situation.done) - len(lines) - len(shown)
    text = _text(situation, lines, dropped, results)
    outline = Outline(
        plan=situation.plan_version, full=shown, first=first, dropped=dropped, notes=list(situation.notes),
        tokens=fixed + used + sum(map(tokens, lines)),
    )  # fmt: skip
    return Context(text, outline)


def _results(situation: Situation, room: int) -> tuple[list[str], list[str], int]:
    """Show recalled results and then the newest ones, as far as they fit."""
    shown: dict[str, str] = {}
    used = 0
    for recall in situation.recalls:
        done = situation.by_step.get(recall.step)
        if done is not None and done.step not in shown:
            piece = fence(done, start=recall.start, length=_fitting(room - used))
            shown[done.step] = piece
            used += tokens(piece)
    for done in reversed(situation.done):
        if done.step in shown:
            continue
        if used >= room:
            break
        piece = fence(done, length=_fitting(room - used))
        shown[done.step] = piece
        used += tokens(piece)
    return list(reversed(shown.values())), list(shown), used


def _fitting(room: int) -> int:
    return max(200, min(PAGE, int((room - 40) * BYTES_PER_TOKEN)))


def _lines(done: Sequence[Done], room: int, shown: frozenset[str]) -> tuple[list[str], str | None]:
    lines: list[str] = []
    first = None
    for each in reversed(done):
        if each.step in shown:
            continue
        text = line(each)
        room -= tokens(text)
        if room < 0:
            break
        lines.append(text)
        first = each.step
    lines.reverse()
    return lines, first


def line(done: Done) -> str:
    """Say in a line what a step was and what came of it."""
    outcome = done.text.replace("\n", " ")
    text = f"step {done.step}: {done.call} -> {'' if done.ok else 'failed: '}{outcome}"
    return _defused(text if len(text) <= LINE else f"{text[: LINE - 3]}...")


def fence(done: Done, *, start: int = 0, length: int = PAGE) -> str:
    """Show a result as data: marked with where it comes from, unable to end its own mark."""
    whole = len(done.text)
    piece = done.text[start : start + length]
    end = start + len(piece)
    more = f' shown="{start} to {end} of {whole} characters; recall({done.step}, start={end}) gives more"'
    failed = "" if done.ok else " failed"
    call = f' call="{_attribute(done.call)}"' if done.call else ""
    mark = f'<result step="{done.step}" tool="{done.tool}"{failed}{call}{more if end < whole else ""}>'
    return f"{mark}\n{_defused(piece)}\n</result>"


def _attribute(text: str) -> str:
    """Make a text fit into a mark: it cannot end it."""
    return text.replace("\n", " ").replace('"', "'").replace("<", "(").replace(">", ")")


def _defused(text: str) -> str:
    return text.replace("</result", "<\\/result").replace("<result", "<\\result")


def _text(situation: Situation, lines: Sequence[str], dropped: int, results: Sequence[str]) -> str:
    parts = [f"# Goal\n{situation.goal}"]
    if lines or dropped:
        left_out = f"({dropped} earlier steps are not shown; recall(step) brings one back)\n" if dropped else ""
        parts.append(f"# Done so far\n{left_out}" + "\n".join(lines))
    if results:
        parts.append("# Results\n" + "\n".join(results))
    if situation.plan:
        parts.append(f"# Plan, version {situation.plan_version}\n" + "\n".join(situation.plan))
    if situation.notes:
        parts.append("# Mind this\n" + "\n".join(f"- {note}" for note in situation.notes))
    parts.append("Decide the next step.")
    return "\n\n".join(parts)
