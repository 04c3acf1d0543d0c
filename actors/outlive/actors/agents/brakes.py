"""Notices an agent that goes round in circles. Pure: it looks at what was called and what came of it."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from outlive.actors.agents.context import Done
from outlive.actors.agents.decisions import Call
from outlive.protocol import codec

EVIDENCE: Final = 5
"""Calls that are shown to the person who is asked."""


@dataclass(slots=True)
class Brakes:
    """Counts what leads nowhere; a person's word lets go.

    Attributes:
        failures: the same failing call, so many times in a row, stops the agent.
        idle: so many decisions without a new result do, too.
    """

    failures: int
    idle: int
    _failed: dict[bytes, int] = field(default_factory=dict[bytes, int])
    _succeeded: set[bytes] = field(default_factory=set[bytes])
    _idle: int = 0
    _last: deque[str] = field(default_factory=lambda: deque[str](maxlen=EVIDENCE))
    _repeated: str = ""

    def decided(self) -> None:
        """Count a decision; `called` or `moved` says that it led somewhere."""
        self._idle += 1

    def called(self, call: Call, done: Done) -> None:
        """Take in what came of a call."""
        key = codec.digest(call.tool.encode(), codec.canonical(call.arguments))
        self._last.append(f"{done.call} -> {'' if done.ok else 'failed: '}{done.text}"[:200])
        if done.ok:
            self._failed.pop(key, None)
            if key not in self._succeeded:
                self._succeeded.add(key)
                self._idle = 0
            return
        self._failed[key] = self._failed.get(key, 0) + 1
        if self._failed[key] >= self.failures:
            self._repeated = f"{done.call} failed {self._failed[key]} times: {done.text}"[:500]

    def moved(self) -> None:
        """Something else went on: a first plan, a person's answer."""
        self._idle = 0

    @property
    def evidence(self) -> str | None:
        """Why a person should look; None while the agent gets on."""
        if self._repeated:
            return f"It repeats a call that fails. {self._repeated}"
        if self._idle >= self.idle:
            last = "; ".join(self._last) or "it called nothing"
            return f"Its last {self._idle} decisions led to nothing new. Last calls: {last}"
        return None

    def release(self) -> None:
        """A person has looked: count anew."""
        self._failed.clear()
        self._repeated, self._idle = "", 0
