"""What happens when an agent goes on under another model or prompt than before.

    pin     the task stays with what it began with, as long as that is still there; else a person is asked
    allow   it goes on under the new one, and says so
    pause   a person is asked

A model is still there when the agent names it (``model`` or ``also``); a prompt when today's tools and the stored
instructions give the same digest. Nothing changes without a word: the next decision names both versions, and so does
the audit trail; that a task stays with the old one is told as well, once. It holds for a request that was in flight as
for one that is yet to be made.
"""

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

import msgspec

from outlive.actors.flow import Flow
from outlive.actors.history import OPERATION
from outlive.actors.question import Question
from outlive.infra import happenings
from outlive.infra.records import AnswerRow, Claim, Record
from outlive.protocol import codec, steps
from outlive.protocol.errors import StepFailed
from outlive.protocol.task import Failure

OnChange: TypeAlias = Literal["pin", "allow", "pause"]

GO_ON: Final = "go on"
STAY: Final = "stay"
STOP: Final = "stop"


class Version(msgspec.Struct, frozen=True):
    """What a decision is made with.

    Attributes:
        model: as configured.
        prompt: digest of instructions, tools and output schema (hex).
        instructions: the author's and the rules of every agent.
    """

    model: str
    prompt: str
    instructions: str

    def same(self, other: "Version") -> bool:
        """True when a decision made with the one could have been made with the other."""
        return (self.model, self.prompt) == (other.model, other.prompt)


class Ended(StepFailed):
    """A person has ended the task."""


@dataclass(frozen=True, slots=True)
class Change:
    """A person must say how to go on.

    Attributes:
        message: what was, and what is now.
        can_stay: the old version is still there.
    """

    message: str
    can_stay: bool


def choose(
    last: Version | None, now: Version, policy: OnChange, *, models: Collection[str], prompt_is_there: bool
) -> Version | Change:
    """Decide what the next decision is made with.

    Args:
        last: what the last one was made with; None = there was none.
        now: what the agent has today.
        policy: the agent's.
        models: the names of all models that the agent still has.
        prompt_is_there: the old prompt can still be made: only instructions differ, and they are stored.
    """
    if last is None or last.same(now) or policy == "allow":
        return now
    can_stay = last.model in models and (last.prompt == now.prompt or prompt_is_there)
    if policy == "pin" and can_stay:
        return last
    return Change(describe(last, now), can_stay)


def describe(last: Version, now: Version) -> str:
    """Say what has changed."""
    parts = [f"model {last.model} is now {now.model}"] if last.model != now.model else []
    parts += [f"prompt {last.prompt[:8]} is now {now.prompt[:8]}"] if last.prompt != now.prompt else []
    return "; ".join(parts)


def audited(claim: Claim, before: Version, after: Version, message: str = "") -> AnswerRow:
    """Return the line of the audit trail about two versions: it belongs to no inbox row, so its place is one that none has."""
    return AnswerRow(
        -claim.last_seq - 1, "applied", message or describe(before, after), who=f"agent {claim.kind}", what="version",
        before=f"{before.model} {before.prompt[:8]}", after=f"{after.model} {after.prompt[:8]}",
    )  # fmt: skip


class Asked(msgspec.Struct, frozen=True):
    """Which change a question was about: kept with it, since today's may be another one."""

    model: str
    prompt: str
    can_stay: bool


class Consent(Question):
    """The question whether to go on under another version."""

    name = "version"

    def __init__(self, flow: Flow, step_id: str, asked: Asked, message: str) -> None:
        """See `Question`; recognised by the version that it was about."""
        choices = [GO_ON, *([STAY] if asked.can_stay else []), STOP]
        super().__init__(flow, step_id, f"{message}. How does it go on?", choices)
        self.arguments = codec.encode(asked)
        self.digest = codec.digest(b"version", self.arguments)


@dataclass(slots=True)
class Changes:
    """Finds out, in one incarnation of a task, what its requests are made with.

    Attributes:
        flow: of the task.
        policy: the agent's.
        now: what it has today.
        models: the names of all models that it still has.
        prompt_of: the prompt that today's tools make with these instructions.
    """

    flow: Flow
    policy: OnChange
    now: Version
    models: Collection[str]
    prompt_of: Callable[[str], str]
    _stays: Version | None = None  # a person wants the old one instead of this
    _told: set[str] = field(default_factory=set[str])

    async def settle(self, number: int, last: Version | None, *, recorded: bool) -> Version:
        """Return what request `number` (from 1) is made with; where the policy says so, a person is asked.

        Args:
            number: the questions about it have places of their own by it, so a request in flight keeps its own place.
            last: what the request before was made with.
            recorded: its answer is there, with what it was made with: nobody is asked any more.

        Raises:
            Ended: a person has said stop.
        """
        if last is None:
            return self.now
        for asked_before in itertools.count():
            place = steps.chosen(f"version-{number}-{asked_before + 1}", run=self.flow.run)
            known = self.flow.history.known(place)
            if known is not None:
                asked = codec.decode(known.arguments or b"", Asked)
            elif recorded:
                return last
            else:
                there = self.prompt_of(last.instructions) == last.prompt
                found = choose(last, self.now, self.policy, models=self.models, prompt_is_there=there)
                if isinstance(found, Version):
                    self._kept(found)
                    return found
                if self._stays is not None and self.now.same(self._stays):
                    return last
                asked = Asked(self.now.model, self.now.prompt, found.can_stay)
            then = Version(asked.model, asked.prompt, last.instructions)
            stopped_before = place in self.flow.history.done  # and then a person has had it go on: they are asked anew
            answer = await Consent(self.flow, place, asked, describe(last, then))
            if answer == STAY:
                self._stays = then
                return last
            if answer == GO_ON:
                last = then  # another change since then is asked about as well
            elif not stopped_before:
                what = f"stopped by a person: {describe(last, then)}"
                raise Ended(Failure(type="VersionChanged", message=what, error_class="permission_denied"))
        raise AssertionError("unreachable")

    def begun(self, place: str) -> Version | None:
        """What the request at a place was last made with, by an incarnation before; None: it was not made."""
        intended = self.flow.history.operations.get((place, OPERATION))
        asked: dict[str, str] = codec.decode((intended.arguments if intended is not None else None) or b"{}")
        if "model" not in asked:
            return None
        same = asked["prompt"] == self.now.prompt
        return Version(asked["model"], asked["prompt"], self.now.instructions if same else "")

    def _kept(self, found: Version) -> None:
        """Where the policy has the task stay with the old version: tell it, once for each new one."""
        told = codec.digest(self.now.model.encode(), self.now.prompt.encode()).hex()[:12]
        place = steps.chosen(f"version-kept-{told}", run=self.flow.run)
        if found.same(self.now) or told in self._told or self.flow.history.knows(place):
            return
        self._told.add(told)
        message = f"Stays with {found.model}, prompt {found.prompt[:8]}, though {describe(found, self.now)}"
        audit = audited(self.flow.claim, found, found, message)
        fact = happenings.note(self.flow.claim, self.flow.world.clock.now(), place, message, name="version-kept")
        self.flow.write(Record(facts=(fact,), answers=(audit,)))
