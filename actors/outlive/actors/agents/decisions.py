"""What a model may decide, and the record of one decision: all that is kept of a request and its answer."""

from typing import Any

import msgspec

from outlive.protocol.plan import Item


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool to call.

    Attributes:
        tool: its name.
        arguments: by name, checked against the tool's types when the decision was recorded.
        item: the id of the plan's item that it serves.
    """

    tool: str
    arguments: dict[str, Any] = {}
    item: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that only a person can say."""

    text: str
    choices: list[str] = []


class Recall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored result to be shown again in the next request, from a character on."""

    step: str
    start: int = 0


class Outline(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request held, by reference: never its text, so a thousand decisions take a thousand short rows.

    Attributes:
        plan: the plan's version; 0 = none.
        full: steps whose result was shown whole (or as far as it fits).
        first: the oldest step that was shown in a line.
        dropped: how many older steps were left out for want of room; `recall` brings them back.
        notes: what was said about the last answers.
        tokens: the estimated size of the request.
    """

    plan: int = 0
    full: list[str] = []
    first: str | None = None
    dropped: int = 0
    notes: list[str] = []
    tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request cost, as reported: tokens in (of them from a cache) and out."""

    input: int = 0
    output: int = 0
    cached: int = 0

    @property
    def tokens(self) -> int:
        """In and out together."""
        return self.input + self.output


class Decided(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision of a model. A model's thinking is no part of it.

    Attributes:
        calls: tools to call, side by side.
        plan: the items of a new plan or of a revision.
        why: the model's reason for it, in a sentence.
        question: for a person.
        recalls: results to be shown again.
        finished: the work is done, and `output` is its result.
        problems: what in the answer could not be used, told to the model with the next request.
        model, reported: the model as configured and as the provider names it.
        prompt: digest of instructions, tools and output schema.
        instructions: what the model was told, where that is other than at the decision before.
        usage: what it cost.
    """

    calls: list[Call] = []
    plan: list[Item] | None = None
    why: str = ""
    question: Question | None = None
    recalls: list[Recall] = []
    finished: bool = False
    output: Any = None
    problems: list[str] = []
    model: str = ""
    reported: str = ""
    prompt: str = ""
    instructions: str | None = None
    usage: Usage = Usage()

    @property
    def usable(self) -> bool:
        """True when something follows from it."""
        return bool(self.calls or self.plan or self.question or self.recalls or self.finished)
