"""A model that hangs, turns us away, answers garbage or repeats itself: bounded, recorded, told, and then a person is asked."""

import asyncio
from typing import Any, Final

import pytest
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from outlive.actors import App, Client, PermissionDenied, TaskFailed
from outlive.actors.testing import Server, virtual_time
from outlive.protocol.tools import RetryPolicy
from tests.actors.remote import Reply
from tests.actors.scene import attempts, rows, serving, soon, status_soon, told
from tests.agents.provider import THOUGHT, Provider, answer, completion, providing
from tests.agents.script import Script, finish, plan
from tests.chaos.harness import some

QUICK: Final = RetryPolicy(max_attempts=3, base=0.01, cap=0.02)
PLAN: Final = completion(plan("look"))
LOOK: Final = completion([("look", {"path": "a", "plan_item": "look"})])
FINISH: Final = completion(finish(7))


def _app(model: Any, **options: Any) -> App:
    app = App("nothing")

    @app.tool(read_only=True)
    def look(path: str) -> str:
        """Look at a file."""
        if path == "denied":
            raise PermissionDenied("no access")
        return f"words of {path}"

    app.agent("seeker", model=model, tools=[look], output=int, retries=QUICK, **options)
    return app


async def _submit(client: Client, app: App, task_id: str) -> None:
    await client.submit(app.kinds["seeker"].with_options(task_id=task_id), "go")


async def _question(client: Client, server: Server, task_id: str) -> tuple[str, str]:
    """Wait until the task is paused for a question; step and text."""
    await status_soon(server, task_id, "paused")
    (reason,) = (await client.get(task_id)).reasons
    assert reason.reason == "question"
    assert reason.step_id is not None
    return reason.step_id, reason.message


async def _result(client: Client, task_id: str) -> int:
    async with asyncio.timeout(60):
        return await client.result(task_id, int)


async def test_a_model_that_hangs_at_step_three_is_given_up_asked_again_and_then_a_person_is_asked(
    shared: Server,
) -> None:
    hung = 0

    async def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        nonlocal hung
        text = str(messages[-1].parts[0].content)  # type: ignore[union-attr]
        if "# Plan" not in text:
            return ModelResponse(parts=[ToolCallPart(*plan("look")[0])])
        if "words of a" not in text:
            return ModelResponse(parts=[ToolCallPart("look", {"path": "a", "plan_item": "look"})])
        if hung < 3:
            hung += 1
            await asyncio.Event().wait()
        return ModelResponse(parts=[ToolCallPart(*finish(7)[0])])

    app = _app(FunctionModel(think, model_name="hanging"), timeout=0.3)
    async with serving(app, shared) as client:
        await _submit(client, app, "t")
        step, message = await _question(client, shared, "t")
        assert hung == 3
        assert message == (
            "The model gave no answer (timeout): TimeoutError: no answer within 0.3 s Ask it again? (ask again / stop)"
        )
        assert [(number, error) for _, number, error in await attempts(shared, "t")] == [
            (1, "timeout"), (2, "timeout"), (3, "timeout"),
        ]  # fmt: skip
        assert any("timeout until" in sentence and "attempt 1 of 3" in sentence for sentence in await told(shared, "t"))
        await client.answer("t", step, "ask again")
        assert await _result(client, "t") == 7
    assert hung == 3, "a request that was answered is not made again"


async def test_a_person_may_stop_instead(shared: Server) -> None:
    with providing(PLAN, Reply(500, {"error": {"message": "broken"}})) as provider:
        app = _app(provider.model)
        async with serving(app, shared) as client:
            await _submit(client, app, "t")
            step, message = await _question(client, shared, "t")
            assert "The model gave no answer (unavailable): Model" in message
            await client.answer("t", step, "stop")
            with pytest.raises(TaskFailed, match="500"):
                await _result(client, "t")
        assert len(provider.requests) == 1 + 3, "the client of the provider repeats nothing by itself"


async def test_turned_away_for_ten_minutes_it_waits_as_told_and_goes_on_by_itself(shared: Server) -> None:
    busy = Reply(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, {"Retry-After": "120"})
    with providing(PLAN, LOOK, *[busy] * 5, FINISH) as provider:
        app = _app(provider.model)
        app.agent("patient", model=provider.model, tools=[app.tools["look"]], output=int)
        async with serving(app, shared, linger=0.0, poll=0.1) as client, virtual_time(shared.postgres_dsn) as time:
            began = await time.now()
            await client.submit(app.kinds["patient"].with_options(task_id="t"), "go")
            for number in range(5):
                await _turned_away(shared, provider, 3 + number)
                await time.advance(140)
            assert await _result(client, "t") == 7
            assert (await time.now() - began).total_seconds() >= 600
        assert len(provider.requests) == 2 + 5 + 1, "one request for each time that it was told to wait"
        assert len(set(provider.requests[2:])) == 1, "the same question each time"
    assert [(number, error) for _, number, error in await attempts(shared, "t")] == [
        (number, "rate_limited") for number in range(1, 6)
    ]
    assert any("rate limited until" in sentence for sentence in await told(shared, "t"))


async def _turned_away(server: Server, provider: Provider, requests: int) -> None:
    """Wait until so many requests came and nobody holds the task, which waits."""

    async def waits() -> bool:
        held = await rows(server, "select 1 from task where owner is null and wait_until is not null")
        return len(provider.requests) == requests and bool(held)

    await soon(waits)


async def test_turned_away_for_longer_than_its_patience_a_person_says_when_to_ask_again(shared: Server) -> None:
    busy = Reply(429, {"error": {"message": "slow down"}}, {"Retry-After": "0"})
    with providing(PLAN, busy) as provider:
        app = _app(provider.model)
        async with serving(app, shared) as client:
            await _submit(client, app, "t")
            await status_soon(shared, "t", "paused")
            (reason,) = (await client.get("t")).reasons
            assert (reason.reason, reason.do) == ("throttled", "outlive resume t")
            assert "was turned away 3 times" in reason.message
            assert len(provider.requests) == 1 + 3
            provider.replies = [FINISH]
            await client.resume("t")
            assert await _result(client, "t") == 7


GARBAGE: Final[dict[str, Reply]] = {
    "an empty body": Reply(200, b"", {"Content-Type": "application/json"}),
    "no json": Reply(200, b"<html>busy</html>", {"Content-Type": "text/html"}),
    "broken json": Reply(200, b'{"id": "c-1", "choices": [{"mess', {"Content-Type": "application/json"}),
    "another object": Reply(200, {"hello": "world", "reasoning_content": THOUGHT}),
    "a number": Reply(200, 17),
    "no choice": answer(None),
    "an empty answer": completion([]),
    "no message": answer({"finish_reason": "stop"}),
    "broken arguments": completion([("look", '{"path": "a')]),
    "arguments that are a list": completion([("look", "[1]")]),
    "an unknown tool": completion([("rm_rf", {"path": "/"})]),
    "bad arguments": completion([("look", {"path": 7, "plan_item": "look"})]),
    "a hundred unknown tools": completion([(f"tool-{n}" * 40, {"text": "x" * 2000}) for n in range(100)]),
    "a plan that is none": completion([("make_plan", {"items": "all"})]),
    "an output of another type": completion([("finish", {"output": "seven"})]),
}


@pytest.mark.parametrize(
    "name", some(GARBAGE, "an empty body", "broken json", "an unknown tool", "an output of another type")
)
async def test_garbage_is_told_to_the_model_a_few_times_and_then_a_person_is_asked(shared: Server, name: str) -> None:
    with providing(PLAN, GARBAGE[name]) as provider:
        app = _app(provider.model, repairs=2, context_tokens=4000)
        async with serving(app, shared) as client:
            await _submit(client, app, "t")
            step, message = await _question(client, shared, "t")
            assert message.startswith("The last 3 answers of openai:gpt-test could not be used: ")
            assert len(provider.requests) == 1 + 3, "bounded"
            useless = [each for each in await told(shared, "t") if each.startswith("Decided: nothing of use: ")]
            assert len(useless) == 3, "told, with the reason"
            provider.replies = [FINISH]
            await client.answer("t", step, "ask again")
            assert await _result(client, "t") == 7
        stored = await rows(
            shared, "select convert_from(body, 'UTF8') as body, convert_from(event, 'UTF8') as event from fact"
        )
        assert THOUGHT not in str([tuple(row) for row in stored]) + provider.bodies


async def test_an_answer_that_cannot_be_read_is_a_bounded_repair(shared: Server) -> None:
    lost = UnexpectedModelBehavior(f"no answer\n{THOUGHT}", f'{{"thinking": "{THOUGHT}"}}')
    script = Script(plan("look"), lost, lost, lost, finish(7))
    app = _app(script.model, repairs=2)
    async with serving(app, shared) as client:
        await _submit(client, app, "t")
        step, message = await _question(client, shared, "t")
        assert "(no answer that can be read: no answer)" in message
        await client.answer("t", step, "Finish.")
        assert await _result(client, "t") == 7
    assert len(script.requests) == 5
    assert THOUGHT not in "".join(script.requests)
