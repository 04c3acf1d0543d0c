"""The shared buckets as two workers use them: batches, tokens given back or lost, pauses told, lifted and found again."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import anyio
import anyio.abc
import pytest

from outlive.actors.testing import Server
from outlive.infra import database
from outlive.infra.buckets import Buckets, Pause, Token
from outlive.infra.clock import Clock
from outlive.infra.database import Pool
from outlive.protocol.bucket import Limit

DOOR = ("default", "post")
SLOW = Limit(calls=1, per=600, burst=3)


class Scene:
    """Buckets over one store; what one tells the others hear, unless messages get lost."""

    def __init__(self, stack: AsyncExitStack, pool: Pool, clock: Clock) -> None:
        self._stack, self._pool, self._clock = stack, pool, clock
        self._all: list[Buckets] = []
        self.deaf = False

    async def worker(self, name: str, poll: float = 600.0) -> Buckets:
        own = Buckets(self._pool, name, self._clock, self._told, poll=poll)
        self._all.append(own)

        async def run(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            await own.run(task_status)

        group = await self._stack.enter_async_context(anyio.create_task_group())
        await group.start(run)
        self._stack.callback(group.cancel_scope.cancel)
        return own

    def _told(self, pauses: Sequence[Pause]) -> None:
        for each in self._all if not self.deaf else ():
            each.hear(pauses)

    async def row(self) -> Any:
        return await self._pool.fetchrow("select tokens, leases, paused_until from bucket")

    def later(self, seconds: float) -> datetime:
        return self._clock.now() + timedelta(seconds=seconds)


@pytest.fixture
async def scene(shared: Server) -> AsyncIterator[Scene]:
    clock = Clock()
    async with Pool(shared.postgres_dsn, application_name="test", size=4) as pool, AsyncExitStack() as stack:
        async with pool.acquire() as connection:
            await database.synchronise(clock, connection)
        yield Scene(stack, pool, clock)


async def until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110  # a table tells no event
            await asyncio.sleep(0.01)


async def test_many_who_ask_at_once_get_what_there_is_and_turns_one_after_the_other(scene: Scene) -> None:
    one = await scene.worker("one")
    entries = await asyncio.gather(*(one.enter(DOOR, SLOW) for _ in range(6)))
    tokens = [entry for entry in entries if isinstance(entry, Token)]
    turns = [entry for entry in entries if isinstance(entry, datetime)]
    assert [token.spend() for token in tokens] == [True] * 3
    assert turns == sorted(turns) and len(set(turns)) == 3
    assert {(b - a).total_seconds() for a, b in pairwise(turns)} == {600.0}
    assert not tokens[0].spend()  # a token is one call


async def test_the_limit_is_one_for_two_workers_and_unspent_tokens_come_back(scene: Scene) -> None:
    one, other = await scene.worker("one"), await scene.worker("other")
    mine = [await one.enter(DOOR, SLOW) for _ in range(3)]
    assert isinstance(await other.enter(DOOR, SLOW), datetime)
    for entry in mine[:2]:
        assert isinstance(entry, Token)
        entry.drop()

    async def two_back() -> bool:
        return int((await scene.row())["tokens"]) == 2

    await until(two_back)
    assert isinstance(await (await scene.worker("third")).enter(DOOR, SLOW), Token)


async def test_who_comes_while_others_wait_comes_behind_them(scene: Scene) -> None:
    one = await scene.worker("one")
    limit = Limit(calls=1, per=600)
    first = await one.enter(DOOR, limit)
    assert isinstance(first, Token) and first.spend()
    second = await one.enter(DOOR, limit)
    assert isinstance(second, datetime)
    with one.waiting(DOOR):
        third = await one.enter(DOOR, limit)
        assert isinstance(third, datetime) and third >= second + timedelta(seconds=599)
    assert await one.enter(DOOR, limit) == second


async def test_a_pause_is_known_at_once_told_to_others_and_found_by_who_starts_later(scene: Scene) -> None:
    one, other = await scene.worker("one"), await scene.worker("other")
    until_when = scene.later(60)
    assert one.quiet
    one.pause(DOOR, until_when)
    one.pause(DOOR, scene.later(1))  # a shorter one changes nothing
    assert one.paused(DOOR) == until_when and not one.quiet

    async def known() -> bool:
        return other.paused(DOOR) == until_when

    await until(known)
    third = await scene.worker("third")
    entry = await third.enter(DOOR, None)
    assert isinstance(entry, datetime) and entry >= until_when
    assert await third.enter(("default", "other"), None) is None
    await one.lift(DOOR)
    assert one.quiet and other.quiet and third.quiet
    assert (await scene.row())["paused_until"] is None


async def test_a_lost_message_is_made_up_for_by_a_look_at_the_table(scene: Scene) -> None:
    scene.deaf = True
    one, other = await scene.worker("one"), await scene.worker("other", poll=0.05)
    one.pause(DOOR, until_when := scene.later(60))

    async def known() -> bool:
        return other.paused(DOOR) == until_when

    async def lifted() -> bool:
        return other.quiet

    await until(known)
    await one.lift(DOOR)
    await until(lifted)


async def test_a_pause_holds_tokens_back_too(scene: Scene) -> None:
    one, other = await scene.worker("one"), await scene.worker("other")
    scene.deaf = True
    one.pause(DOOR, until_when := scene.later(60))

    async def written() -> bool:
        row = await scene.row()
        return row is not None and row["paused_until"] == until_when

    await until(written)
    entry = await other.enter(DOOR, SLOW)  # it was not told, but has to ask for a token
    assert isinstance(entry, datetime) and entry >= until_when


async def test_who_gives_up_while_it_asks_takes_no_token_along(scene: Scene) -> None:
    one = await scene.worker("one")
    async with asyncio.TaskGroup() as group:
        gone = [group.create_task(one.enter(DOOR, SLOW)) for _ in range(3)]
        await asyncio.sleep(0)
        for task in gone:
            task.cancel()

    async def all_there() -> bool:
        row = await scene.row()
        return row is None or row["tokens"] is None or (row["tokens"] == 3 and row["leases"] == b"[]")

    await until(all_there)
