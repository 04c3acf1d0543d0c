"""A rolling deploy: an old and a new version of an app work side by side, then the old one leaves, and nothing stands still."""

from outlive.actors import App, Task
from outlive.actors.testing import Server
from tests.actors.scene import rows, serving


def version(number: int, *more: str) -> App:
    """The app as it is in one version; the kinds `more` are new."""
    app = App("todo")

    @app.tool(read_only=True)
    def which() -> int:
        return number

    async def ask(task: Task) -> int:
        return await task.call(which)

    for name in ("ask", *more):
        app.task(name=name)(ask)
    return app


async def test_both_get_work_and_when_the_old_one_leaves_nothing_waits(shared: Server) -> None:
    old, new = version(1), version(2, "only_new")
    async with serving(new, shared, slots=4) as client:
        async with serving(old, shared, slots=4):
            seen, sent = set[int](), 0
            while seen != {1, 2}:
                handles = [await client.submit("ask", {}, output=int) for _ in range(8)]
                sent += len(handles)
                seen |= {await handle.result(timeout=20) for handle in handles}
            handle = await client.submit("only_new", {}, output=int)
            assert await handle.result(timeout=20) == 2, "the old one leaves it alone"
            leaving = [await client.submit("ask", {}, output=int) for _ in range(20)]
        behind = [await client.submit("ask", {}, output=int) for _ in range(8)]
        assert {await handle.result(timeout=20) for handle in leaving} <= {1, 2}
        assert {await handle.result(timeout=20) for handle in behind} == {2}
    ended = await rows(shared, "select status, count(*) from task group by 1")
    assert [tuple(row) for row in ended] == [("succeeded", sent + 29)]
