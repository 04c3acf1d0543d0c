"""Business identity: the same action under another step, or in another task, is not sent again.

A tool with `unique=` names the action by its arguments. The step that takes the name sends; whoever comes second

    has its result      it happened, with the same arguments
    waits for it        it may still happen: it waits for a yes, is under way, or its outcome is being found out
    takes over          it failed, or its task ended, without sending
    is refused          a person said no to the same call
    asks a person       it happened with other arguments, or nobody knows what became of it
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar

from outlive.actors.consent import Consented
from outlive.actors.flow import Flow
from outlive.infra.identities import Holder, Name
from outlive.infra.records import Record, State
from outlive.protocol import codec
from outlive.protocol.tools import AnyTool

R = TypeVar("R")
_FIRST_LOOK: Final = 0.1
_LAST_LOOK: Final = 15.0
"""Seconds between two looks at the step that one waits for, in the beginning and in the end."""


@dataclass(frozen=True, slots=True)
class Found(Generic[R]):
    """The effect had happened, and this is its result."""

    value: R


class Unique(Consented[R]):
    """A call of a tool that may name the business action that it makes."""

    __slots__ = ("_own", "_waiting")

    def __init__(self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any]) -> None:
        """See `ToolStep`."""
        super().__init__(flow, step_id, tool, bound)
        self._own = False  # a person had it sent beside the one that has the name
        self._waiting = False  # it was told that it waits

    async def identify(self) -> Found[R] | None:
        """Have the action's name, so that this step alone sends; or the result of the step that sent.

        Raises:
            StepFailed: a person said no: to the same call of another step, or to sending this one as well.
        """
        action = self.tool.action(self.bound)
        if action is None or self._own:
            return None
        flow, pause = self.flow, _FIRST_LOOK
        scope = flow.claim.task_id if self.tool.unique_within == "task" else ""
        wanted = Name(self.tool.name, scope, action, self.step_id, self.operation_id, self.payload)
        while True:
            await flow.flushed()  # whoever comes second sees what this step did before
            holder = await flow.world.identities.claim(flow.claim, wanted, self._heed())
            match holder.standing:
                case "under_way":
                    await self._wait_for(holder, pause)
                    pause = min(pause * 2, _LAST_LOOK)
                case "happened" if holder.digest == self.payload:
                    try:
                        return self._same_as(holder)
                    except codec.NotStorable:
                        await self._conflict(holder._replace(standing="unknown"))
                        return None
                case "refused":
                    raise self._refused(None, "refused", f"{holder.refusal} (asked by {_place(holder)})")
                case "happened" | "unknown":
                    await self._conflict(holder)
                    return None
                case _:
                    return None

    def _heed(self) -> timedelta:
        """For how long a no to the same call counts; not for one that a person wants tried again."""
        heeds = not self.flow.history.tried_again(self.step_id) and self._wants()
        return timedelta(seconds=self.tool.approval_ttl if heeds else 0)

    async def _wait_for(self, holder: Holder, pause: float) -> None:
        """Wait until it is time to look again; told once."""
        until = self.flow.world.clock.now() + timedelta(seconds=pause)
        if not self._waiting and not self.flow.history.waits_itself(self.step_id):
            self._waiting = True
            fact = self._fact("waiting", f"{self._title()}: waits for {_place(holder)}, the same action"[:500])
            state = State(waiting_for=_place(holder), wait_until=until)
            row = self._row("prepared", arguments=self.shown)
            self.flow.write(Record(facts=(fact,), operations=(row,), state=state, current_step=self.step_id))
        event: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self.flow.wait(self.step_id, _place(holder), until, event)

    def _same_as(self, holder: Holder) -> Found[R]:
        """Complete the step with the result of the one that sent."""
        body = holder.result or b"null"
        value: R = codec.unpack(body, self.tool.result_type)
        same = f"same as {_place(holder)}, not sent again"
        row = self._row("prepared", arguments=self.shown, ended=self.flow.world.clock.now())
        self.flow.write(
            Record(
                facts=(self._fact("completed", f"{self._title()}: {same}"[:500], body=body),), steps=1,
                operations=(row._replace(note=same),), current_step=self.step_id, point="outcome",
                state=self.flow.withdraw(self.step_id),
            )
        )  # fmt: skip
        return Found(value)

    async def _conflict(self, holder: Holder) -> None:
        """Ask a person: yes sends this call as an action of its own, `skip` gives it a result."""
        what = self._show(holder.arguments) if holder.arguments is not None else self.tool.name
        if holder.standing == "unknown":
            how = f"{_place(holder)} is the same action ({what}), and nobody knows whether it happened or what it gave"
        else:
            how = f"{_place(holder)} is the same action with other arguments, and has happened: {what}"
        self._note = f"an action of its own beside {_place(holder)}"
        await self.ask(
            f"{self._show()} was not sent: {how}. A yes sends this one as well; or give it a result: "
            f"outlive skip {self.flow.claim.task_id} {self.step_id} RESULT"
        )
        self._own = True


def _place(holder: Holder) -> str:
    return f"step {holder.step_id} of task {holder.task_id}"
