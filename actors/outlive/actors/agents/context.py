"""The request of one decision, made of facts under a budget. Pure: the same facts give the same text.

What is shown, in this order (old facts first, so that a provider's cache keeps the beginning):

    goal        always
    done        one line a step that is not shown whole, the oldest that fits first
    results     recalled ones, and the newest while they fit into half of the room
    plan        always, with what became of each item
    notes       always: why the last answer could not be used, what a person said

Room is given away in this order: fixed parts, results, lines from the newest back. What is left out is counted, and
comes back by `recall`. Text from tools is fenced: it is data, whatever it says. A long plan and many notes are cut to
their share, so that neither a model nor a person can make a request that does not fit.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from outlive.actors.agents.decisions import Outline, Recall

LINE: Final = 240
"""Characters of a done step's line."""

PAGE: Final = 20_000
"""The most bytes of one result in a request; `recall` pages on."""

LEAST: Final = 200
"""Tokens below which a result is not worth its mark, which takes up to three quarters of them."""

NOTES: Final = 1 / 8
PLAN: Final = 1 / 4
"""The most that notes and plan take, as a share of the budget."""

_MARKS: Final = re.compile(r"<(?=\s*/?\s*(?:result|answer)\b)", re.IGNORECASE)
PERSON: Final = ""
"""Stands for a tool in what a person has answered."""

BYTES_PER_TOKEN: Final = 3.5
"""An estimate on the high side for English and code; providers report what it really was."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that has ended.

    Attributes:
        step: its id.
        call: what was called, short.
        tool: its name, or `PERSON`.
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
        ValueError: goal and tools alone do not fit; says how large they are.
    """
    room = budget - situation.fixed - tokens(situation.goal) - 60
    plan = _cut(situation.plan, int(min(budget * PLAN, room / 2)), "items")
    notes = _cut(situation.notes, int(min(budget * NOTES, room / 4)), "notes")
    fixed = budget - room + sum(map(tokens, (*plan, *notes)))
    if fixed > budget:
        raise ValueError(
            f"goal, plan and tools take about {fixed:,} tokens of a context of {budget:,}: give the agent a larger one "
            "(context_tokens=...) or fewer tools"
        )
    room = budget - fixed
    results, shown, used = _results(situation, room // 2)
    lines, first = _lines(situation.done, room - used, frozenset(shown))
    dropped = len(situation.done) - len(lines) - len(shown)
    text = _text(situation, plan, notes, lines, dropped, results)
    outline = Outline(
        plan=situation.plan_version, full=shown, first=first, dropped=dropped, notes=notes,
        tokens=fixed + used + sum(map(tokens, lines)),
    )  # fmt: skip
    return Context(text, outline)


def _cut(texts: Sequence[str], room: int, what: str) -> list[str]:
    """Make texts lines that take so many tokens together: shorter ones first, then fewer, which is said."""
    lines = [" ".join(text.split()) for text in texts]
    for length in (2 * LINE, LINE // 3):
        if sum(map(tokens, lines)) <= room:
            return lines
        lines = [shorter(each, length) for each in lines]
    kept: list[str] = []
    room -= tokens(f"({len(lines)} more {what})")
    for each in lines:
        room -= tokens(each)
        if room < 0:
            return [*kept, f"({len(lines) - len(kept)} more {what})"]
        kept.append(each)
    return kept


def shorter(text: str, length: int) -> str:
    """Cut a text to so many characters."""
    return text if len(text) <= length else f"{text[: length - 3]}..."


def _results(situation: Situation, room: int) -> tuple[list[str], list[str], int]:
    """Show recalled results and then the newest ones, as far as they fit."""
    shown: dict[str, str] = {}
    used = 0
    starts = {recall.step: recall.start for recall in reversed(situation.recalls)}
    recalled = [situation.by_step[recall.step] for recall in situation.recalls if recall.step in situation.by_step]
    for done in itertools.chain(recalled, reversed(situation.done)):
        if done.step in shown:
            continue
        if room - used < LEAST:
            break
        piece = fence(done, start=starts.get(done.step, 0), size=_fitting(room - used))
        shown[done.step] = piece
        used += tokens(piece)
    return list(reversed(shown.values())), list(shown), used


def _fitting(room: int) -> int:
    """Return the bytes of a result that fit into so many tokens, beside its mark."""
    return min(PAGE, int((room - LEAST * 3 / 4) * BYTES_PER_TOKEN))


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
    outcome = " ".join(done.text[: 2 * LINE].split())
    return _defused(shorter(f"step {done.step}: {done.call} -> {'' if done.ok else 'failed: '}{outcome}", LINE))


def fence(done: Done, *, start: int = 0, size: int = PAGE) -> str:
    """Show a result as data, as many bytes as told: marked with where it comes from, unable to end its own mark."""
    whole = len(done.text)
    piece = _piece(done.text, start, size)
    end = start + len(piece)
    more = f"; recall({done.step}, start={end}) gives more" if end < whole else ""
    part = f' shown="{start} to {end} of {whole} characters{more}"' if start or more else ""
    name, of = ("result", f' tool="{done.tool}"') if done.tool != PERSON else ("answer", ' of="person"')
    call = f' call="{_attribute(done.call)}"' if done.call else ""
    mark = f'<{name} step="{done.step}"{of}{"" if done.ok else " failed"}{call}{part}>'
    return f"{mark}\n{_defused(piece)}\n</{name}>"


def _piece(text: str, start: int, size: int) -> str:
    """Take characters of a text, at most so many bytes."""
    raw = text[start : start + size].encode("utf-8", "replace")
    return raw.decode() if len(raw) <= size else raw[:size].decode("utf-8", "ignore")


def _attribute(text: str) -> str:
    """Make a text fit into a mark: it cannot end it."""
    line = " ".join(text.split()).replace('"', "'").replace("<", "(").replace(">", ")")
    return shorter(line, LINE // 2)


def _defused(text: str) -> str:
    """Make text from outside unable to look like one of our marks."""
    return _MARKS.sub(r"<\\", text)


def _text(
    situation: Situation,
    plan: Sequence[str],
    notes: Sequence[str],
    lines: Sequence[str],
    dropped: int,
    results: Sequence[str],
) -> str:
    parts = [f"# Goal\n{situation.goal}"]
    if lines or dropped:
        left_out = f"({dropped} earlier steps are not shown; recall(step) brings one back)\n" if dropped else ""
        parts.append(f"# Done so far\n{left_out}" + "\n".join(lines))
    if results:
        parts.append("# Results\n" + "\n".join(results))
    if plan:
        parts.append(f"# Plan, version {situation.plan_version}\n" + "\n".join(plan))
    if notes:
        parts.append("# Mind this\n" + "\n".join(f"- {note}" for note in notes))
    parts.append("Decide the next step.")
    return "\n\n".join(parts)
