"""What a step does so that a remote is left alone: it waits for its tool's limit, and for pauses that any task was told of.

Before an intent, so that nothing is open while it waits. The wait is a fact, the limit and the pause are rows: a task that
waits may be let go, and goes on waiting wherever it wakes.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Any, Final

from outlive.actors.classifier import classify, told_to_wait
from outlive.actors.flow import Flow, Stopped
from outlive.actors.reactions import later
from outlive.infra.buckets import Token
from outlive.infra.records import Fact, Record, State
from outlive.protocol.errors import NotSent
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Reason, ReasonCode
from outlive.protocol.tools import AnyTool

MOMENT: Final = 0.5
"""Seconds: a shorter wait is not told."""

_SHARED: Final = frozenset({ErrorClass.RATE_LIMITED, ErrorClass.UNAVAILABLE})
"""Classes whose Retry-After is meant for everybody."""


class Limited:
    """A step that asks before it calls."""

    __slots__ = ("_began", "_token")

    flow: Flow
    step_id: str
    tool: AnyTool
    _began: datetime
    _token: Token | None  # the right to make the call under way, where the tool has a limit

    def _title(self) -> str:
        raise NotImplementedError

    def _fact(self, status: Any, message: str, **more: Any) -> Fact:
        raise NotImplementedError

    async def _wait(self, until: datetime) -> None:
        raise NotImplementedError

    @property
    def _door(self) -> tuple[str, str]:
        return (self.flow.claim.tenant, self.tool.name)

    async def _admit(self) -> None:
        """Wait until a call may begin; where the tool has a limit, have a token for it. May pause the task instead."""
        buckets, limit = self.flow.world.buckets, self.tool.rate_limit
        if limit is None and buckets.quiet:
            return
        await self._ask_again_if_told()
        known = self.flow.history.waits.get(self.step_id)
        turn = known.wait_until if known is not None else None  # keeps its turn across a crash
        if turn is not None and turn > self.flow.world.clock.now():
            await self._wait(turn)
        if limit is not None and not self.tool.is_async:
            await self.flow.world.threads.room()
        times = 0
        while isinstance(entry := await buckets.enter(self._door, limit, turn=turn is not None), datetime):
            turn, times = entry, times + 1
            with buckets.waiting(self._door):
                await self._hold(turn, times)
        if self._token is not None:
            self._token.drop()  # of an attempt that was not made
        self._token = entry
        self._began = self.flow.world.clock.now()

    async def _ask_again_if_told(self) -> None:
        """A person who resumes a throttled task ends the pause: the remote is asked again, and may say no again."""
        flow = self.flow
        if self.step_id in flow.history.throttled and flow.claimed.status != "paused":  # else its time has come
            flow.history.throttled.discard(self.step_id)
            if flow.world.buckets.paused(self._door) is not None:
                await flow.world.buckets.lift(self._door)

    async def _hold(self, until: datetime, times: int) -> None:
        """Wait once more; told at the first, second, fourth, eighth, ... time."""
        flow = self.flow
        left = (until - flow.world.clock.now()).total_seconds()
        paused = flow.world.buckets.paused(self._door) is not None
        if paused and left > self.tool.retries.max_wait:
            raise self._held_back(until)
        if left <= MOMENT:
            await asyncio.sleep(max(0.0, left))
            flow.check()
            return
        if times & (times - 1) == 0:
            state = State(waiting_for=f"{self.tool.name}, which is rate limited", wait_until=until)
            fact = self._fact("waiting", f"{self._limited_until(until)}: {self._why(paused=paused)}", wait_until=until)
            flow.write(Record(facts=(fact,), state=state, current_step=self.step_id))
        await self._wait(until)

    def _limited_until(self, until: datetime) -> str:
        far = until - self.flow.world.clock.now() > timedelta(hours=20)
        return f"{self._title()}: rate limited until {until:{'%Y-%m-%d %H:%M:%S' if far else '%H:%M:%S'}}"[:400]

    def _why(self, *, paused: bool) -> str:
        limit = self.tool.rate_limit
        if paused or limit is None:
            return "another call was told to wait"
        return f"at most {limit}"

    def _held_back(self, until: datetime) -> Stopped:
        """The remote wants to be left alone for longer than a task waits by itself: it pauses until then."""
        message = f"{self._limited_until(until)}: {self._why(paused=True)}"
        # Without a time: whoever goes on from here before that time does so at a person's word.
        self.flow.write(Record(facts=(self._fact("waiting", message),), current_step=self.step_id))
        return self.flow.suspend(
            Reason(
                reason=ReasonCode.THROTTLED, since=self.flow.world.clock.now(), message=message, until=until,
                do=f"outlive resume {self.flow.claim.task_id}", step_id=self.step_id,
            )
        )  # fmt: skip

    def _begin_call(self) -> None:
        """Use up the token, now that the call begins. Raises `NotSent` when that took too long."""
        if self._token is not None and not self._token.spend():
            raise NotSent("it could not begin within its turn at the rate limit")

    def _leave_alone(self, error: BaseException) -> None:
        """What the remote tells one task holds for all of the tenant, in all workers."""
        self.flow.history.throttled.discard(self.step_id)
        now = self.flow.world.clock.now()
        told = told_to_wait(error, now)
        if told and classify(error, self.tool.classify) in _SHARED:
            self.flow.world.buckets.pause(self._door, later(now, told))
