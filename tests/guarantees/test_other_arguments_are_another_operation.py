"""Corrected arguments, or the same under a new key, are an operation of their own: asked about, sent, recorded by itself."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.answers import Code
from outlive.protocol.errors import CommandRefused
from outlive.protocol.operations import OperationStatus
from outlive.protocol.task import Status
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, some, submit_many, until, wait_all_final

APP = "tests.chaos.effects_app:app"
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"
POINTS = [
    "clerk.before_commit", "clerk.after_commit", "claim.after", "intent.before_commit", "intent.after_commit",
    "effect.before", "effect.after", "outcome.before_commit", "outcome.after_commit",
]  # fmt: skip
"""All that lies between a person's word and the outcome."""

MOMENTS = some(POINTS, "clerk.after_commit", "effect.after")


def worker(shared: Server, service: FakeService, failpoints: str = "") -> WorkerProcess:
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5", "EFFECTS_SETTLE": "0.2"}
    return WorkerProcess(shared, APP, service=service, failpoints=failpoints, environment=short)


async def failed_post(shared: Server, service: FakeService) -> None:
    """A task whose second step has failed, and no worker."""
    await service.behave("fail", name="post", after=1, status=403)
    async with worker(shared, service):
        await wait_all_final(shared, await submit_many(shared, "posts", 1), status="failed")


async def ledger(shared: Server) -> list[tuple[str, str, str, int]]:
    rows = await fetch(shared, "select step_id, operation_id, status, attempts from outlive.operation order by 1, 2")
    return [(row[0], row[1], row[2], row[3]) for row in rows]


async def test_corrected_arguments_are_sent_under_a_new_key(shared: Server, service: FakeService) -> None:
    await failed_post(shared, service)
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        answer = await client.retry("posts-0", "2", args={"text": "three"})
        assert answer.message == "Task posts-0 goes on from its checkpoint, step 2 with the arguments given by ann."
        assert await client.result("posts-0", list[int], timeout=20) == [1, 2]
        first, second = await service.effects()
        assert (second.body, second.key) == ("three", f"{first.key[:-3]}2:2" if first.key else None)
        assert await ledger(shared) == [
            ("1", "1", "succeeded", 1), ("2", "1", "failed", 1), ("2", "2", "succeeded", 1)
        ]  # fmt: skip
        page = await client.operations("posts-0")
        operations = {f"{one.step_id}:{one.operation_id}": one for one in page.operations}
        assert operations["2:1"].digest != operations["2:2"].digest
        (word,) = page.words
        assert (word.verb, word.operation_id, word.by) == ("retry", "2", "ann")
        said = [e["message"] async for e in events(shared, "posts-0") if "instead of" in e["message"]]
        assert said == ['post: ann has it tried again as 2:2, with {"text":"three"} instead of {"text":"two"}']
        audit = await fetch(shared, "select who, before, after from outlive_store.audit where what = 'correct'")
        assert [tuple(row) for row in audit] == [("ann", '{"text":"two"}', '{"text":"three"}')]
        await assert_progress_gapless(shared, ["posts-0"], final=False)  # it has failed once


async def events(shared: Server, task_id: str) -> AsyncGenerator[dict[str, Any]]:
    rows = await fetch(shared, "select event from outlive_store.fact where task_id = $1 order by seq", task_id)
    for row in rows:
        yield json.loads(row["event"])


@pytest.mark.parametrize("point", MOMENTS)
async def test_killed_after_a_correction_it_is_one_effect_with_it(
    shared: Server, service: FakeService, point: str
) -> None:
    await failed_post(shared, service)
    async with worker(shared, service, f"{point}=kill") as killed, Client(shared.settings) as client:
        with_args = asyncio.create_task(client.retry("posts-0", "2", args={"text": "three"}))
        await killed.exited()
        await killed.restart()
        await with_args
        assert await client.result("posts-0", list[int], timeout=20) == [1, 2]
        assert [effect.body for effect in await service.effects()] == ["one", "three"]
        assert [row[:3] for row in await ledger(shared)] == [
            ("1", "1", "succeeded"), ("2", "1", "failed"), ("2", "2", "succeeded")
        ]  # fmt: skip
        await assert_progress_gapless(shared, ["posts-0"], final=False)  # it has failed once


async def test_a_yes_is_asked_for_again(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="send_mail", status=403)
    async with worker(shared, service) as works, Client(shared.settings, by="ann") as client:
        await submit_many(shared, "letter", 1, {"to": "all@example.com"})
        await until(shared, PAUSED)
        await client.approve("letter-0", "1")
        await wait_all_final(shared, ["letter-0"], status="failed")
        await client.retry("letter-0", "1", args={"to": "one@example.com"})
        await until(shared, PAUSED)
        (reason,) = (await client.get("letter-0")).reasons
        assert reason.do == "outlive approve letter-0 1:2"
        assert "one mail to one@example.com" in reason.message
        with pytest.raises(CommandRefused, match="the current operation of step 1 is 1:2") as refused:
            await client.approve("letter-0", "1:1")
        assert refused.value.answer.code is Code.STALE
        await works.restart()
        with pytest.raises(CommandRefused, match="other arguments"):
            await client.approve("letter-0", "1:2", digest="0" * 32)
        await client.approve("letter-0", "1:2", digest=reason.digest)
        assert await client.result("letter-0", int, timeout=20) == 1
        (mail,) = await service.effects()
        assert mail.key == "default/letter-0:1:2"
        with pytest.raises(CommandRefused):
            await client.approve("letter-0", "1:2")


@pytest.mark.parametrize(
    "point", some(["", "claim.after", "outcome.before_commit", "outcome.after_commit"], "", "outcome.before_commit")
)
async def test_a_read_only_step_is_corrected_too(
    shared: Server, service: FakeService, tmp_path: Path, point: str
) -> None:
    right = tmp_path / "right" / ("r" * 200)  # longer than what a fact shows of a read-only step
    right.parent.mkdir()
    right.write_text("home")
    async with worker(shared, service), Client(shared.settings) as client:
        await submit_many(shared, "look_up", 1, {"path": str(tmp_path / "wrong")})
        await wait_all_final(shared, ["look_up-0"], status="failed")
    async with worker(shared, service, f"{point}=kill" if point else "") as works, Client(shared.settings) as client:
        await client.retry("look_up-0", "1", args={"path": str(tmp_path / "as wrong")})
        if point:
            await works.exited()
            await works.restart()
        await wait_all_final(shared, ["look_up-0"], status="failed")
        await client.retry("look_up-0", "1", args={"path": str(right)})
        assert await client.result("look_up-0", str, timeout=20) == "home: 1"
        assert await ledger(shared) == [("2", "1", "succeeded", 1)]
        tries = await fetch(shared, "select operation_id, attempt from outlive_store.attempt order by 1, 2")
        assert {row["operation_id"] for row in tries} == {"1", "2"}
        said = (await client.operations("look_up-0")).words
        assert [(word.step_id, word.operation_id) for word in said] == [("1", "2"), ("1", "3")]


async def test_arguments_that_do_not_fit_are_refused_and_change_nothing(shared: Server, service: FakeService) -> None:
    await failed_post(shared, service)
    async with worker(shared, service), Client(shared.settings) as client:
        for wrong, said in ({"text": 5}, "Expected `str`"), ({"txt": "three"}, "txt"), ({}, "text"):
            with pytest.raises(CommandRefused, match=said) as refused:
                await client.retry("posts-0", "2", args=wrong)
            assert refused.value.answer.code is Code.INVALID
        assert (await client.get("posts-0")).status is Status.FAILED
        with pytest.raises(CommandRefused, match="its result stands: 1"):
            await client.retry("posts-0", "1", args={"text": "three"})
        with pytest.raises(CommandRefused, match="Nothing is known of a step 9"):
            await client.retry("posts-0", "9", args={"text": "three"})


async def test_where_nobody_can_tell_that_they_do_not_fit_the_step_fails_again(
    shared: Server, service: FakeService
) -> None:
    await failed_post(shared, service)
    async with Client(shared.settings, by="ann") as client:
        async with WorkerProcess(shared, service=service):  # it has another app: nothing of posts
            await client.retry("posts-0", "2", args={"text": 5})
        async with worker(shared, service):
            await wait_all_final(shared, ["posts-0"], status="failed")
            failure = (await client.get("posts-0")).failure
            assert failure is not None
            assert (failure.type, failure.step_id) == ("InvalidArguments", "2")
            assert "the arguments given do not fit: post(text): Expected `str`, got `int`" in failure.message
            await client.retry("posts-0", "2")  # as before: they still do not fit
            await wait_all_final(shared, ["posts-0"], status="failed")
            await client.retry("posts-0", "2", args={"text": "three"})
            assert await client.result("posts-0", list[int], timeout=20) == [1, 2]
            assert [row[1:3] for row in (await ledger(shared))[1:]] == [
                ("1", "failed"),
                ("2", "failed"),
                ("3", "succeeded"),
            ]
            assert [effect.body for effect in await service.effects()] == ["one", "three"]


async def test_a_remote_that_repeats_its_error_gets_a_new_key(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="charge_card", status=500)
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        await submit_many(shared, "charge", 1)
        await until(shared, PAUSED)
        await client.resolve("charge-0", "1", "did_not_happen", new_operation=True, reason="not in the books")
        assert await client.result("charge-0", int, timeout=20) == 1
        assert await ledger(shared) == [("1", "1", "failed", 1), ("1", "2", "succeeded", 1)]
        assert (await service.counts()).requests == {"default/charge-0:1:1": 1, "default/charge-0:1:2": 1}
        first, second = (await client.operations("charge-0")).operations
        assert (first.digest, first.arguments) == (second.digest, second.arguments)
        assert (first.status, second.result) == (OperationStatus.FAILED, 1)


@pytest.mark.parametrize("point", MOMENTS)
async def test_killed_after_that_word_it_is_one_effect(shared: Server, service: FakeService, point: str) -> None:
    await service.behave("drop", name="charge_card", times=1)
    async with worker(shared, service):
        await submit_many(shared, "charge", 1)
        await until(shared, PAUSED)
    async with worker(shared, service, f"{point}=kill") as killed, Client(shared.settings) as client:
        word = asyncio.create_task(client.resolve("charge-0", "1", "did_not_happen", new_operation=True))
        await killed.exited()
        await killed.restart()
        await word
        if point in {"intent.after_commit", "effect.before", "effect.after", "outcome.before_commit"}:
            await until(shared, PAUSED)  # begun, and its end not recorded: unknown, under its own number
            with pytest.raises(CommandRefused, match="the current operation of step 1 is 1:2"):
                await client.resolve("charge-0", "1:1", "did_not_happen")
            await client.resolve("charge-0", "1:2", "happened", 1)
        assert await client.result("charge-0", int, timeout=20) == 1
        assert [row[1:3] for row in await ledger(shared)] == [("1", "failed"), ("2", "succeeded")]
        requests = (await service.counts()).requests
        assert requests["default/charge-0:1:1"] == 1
        assert requests.get("default/charge-0:1:2", 0) <= 1
        await assert_progress_gapless(shared, ["charge-0"])
