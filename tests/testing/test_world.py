"""What tools really do is kept with its cause, apart from what they declare."""

import httpx
import pytest

from outlive.actors import App, Operation, Outcome, Task
from outlive.actors.testing import (
    FakeClient,
    FakeService,
    FakeWorld,
    Server,
    assert_as_declared,
    assert_effects_once,
)
from tests.actors.scene import serving


def shop(world: FakeWorld | FakeClient) -> App:
    app = App("shop")

    @app.tool(read_only=True)
    def find(text: str) -> int:
        return world.effect("index", text)

    @app.tool(idempotent=True)
    def book(op: Operation, seat: str) -> int:
        return world.effect("book", seat, key=op.key)

    @app.tool(settle=0)
    def mail(op: Operation, to: str) -> int:
        return world.effect("mail", to, key=op.key)

    @mail.reconcile
    def look(op: Operation, to: str) -> Outcome[int]:
        return Outcome.happened(world.effect("looked", to))

    @app.task
    async def finding(task: Task) -> int:
        return await task.call(find, "tea")

    @app.task
    async def booking(task: Task) -> int:
        return await task.call(book, "12a")

    @app.task
    async def mailing(task: Task) -> int:
        return await task.call(mail, "a@example.com")

    return app


async def test_a_tool_that_lies_is_named_with_what_it_did(shared: Server) -> None:
    world = FakeWorld(honours_keys=False)
    world.behave("lose_answer", name="book")
    world.behave("lose_answer", name="mail")
    async with serving(shop(world), shared) as client:
        for kind in ("booking", "mailing", "finding"):
            handle = await client.submit(kind, task_id=kind)
            await handle.result(timeout=30)
    causes = {effect.name: effect.cause for effect in world.effects()}
    found, booked, mailed = causes["index"], causes["book"], causes["mail"]
    assert found is not None and booked is not None and mailed is not None
    assert (found.task_id, found.step_id, found.tool, found.attempt) == ("finding", "1", "find", 1)
    assert (booked.attempt, booked.declared, booked.key) == (2, "idempotent", world.effects(name="book")[0].key)
    assert (mailed.declared, mailed.worker) == ("effect", found.worker)
    with pytest.raises(AssertionError) as lies:
        await assert_as_declared(world)
    said = str(lies.value)
    assert "find() is declared read_only, and did: index" in said and "task finding, step 1" in said
    assert "book() is declared idempotent, and did it twice" in said and "attempt 2" in said
    assert "look() of mail may change nothing, and did: looked" in said
    assert len(said.splitlines()) == 3
    with pytest.raises(AssertionError, match="1 effects happened more than once"):
        await assert_effects_once(world)


async def test_the_cause_goes_over_http_and_the_honest_are_not_named(shared: Server, service: FakeService) -> None:
    remote = FakeClient(service.url)
    await service.behave("lose_answer", name="book")
    async with serving(shop(remote), shared) as client:
        handle = await client.submit("booking", task_id="t")
        await handle.result(timeout=30)
    await assert_as_declared(service)
    (booked,) = await service.effects()
    assert booked.cause is not None
    assert (booked.cause.task_id, booked.cause.key, booked.cause.attempt) == ("t", booked.key, 1)
    await service.effect("by-hand")
    assert (await service.effects(name="by-hand"))[0].cause is None
    await assert_effects_once(service, expected=1)
    remote.close()


def test_it_behaves_as_told_and_says_what_it_cannot() -> None:
    world = FakeWorld()
    first = world.effect("mail", 1, key="k")
    assert world.effect("mail", 1, key="k") == first
    with pytest.raises(httpx.HTTPStatusError, match="another body"):
        world.effect("mail", 2, key="k")
    world.behave("throttle", seconds=7)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        world.effect("mail")
    assert (refused.value.response.status_code, refused.value.response.headers["retry-after"]) == (429, "7")
    world.behave("drop", times=None)
    with pytest.raises(httpx.TransportError):
        world.effect("post")
    world.calm()
    assert world.counts().names == {"mail": 1}
    with pytest.raises(ValueError, match="there are: lose_answer"):
        world.behave("explode")  # type: ignore[arg-type]
