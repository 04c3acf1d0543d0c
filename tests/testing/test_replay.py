"""A kept history is run through today's code: what takes another way is named, and nothing is called."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.actors import App, Task
from outlive.actors.testing import Different, Server, Unreadable, replay
from tests.actors.scene import row_soon, serving, status_soon
from tests.testing import kept_app
from tests.testing.kept_app import app

ROOT = Path(__file__).parents[2]
HISTORIES = ROOT / "tests/histories"


@pytest.fixture(autouse=True)
def _nothing_was_called() -> None:
    kept_app.calls.clear()
    kept_app.script.requests.clear()


async def test_what_is_exported_today_is_followed_today(shared: Server, tmp_path: Path) -> None:
    async with serving(app, shared) as client:
        await client.submit("order", {"items": ["tea", "jam"]}, task_id="done")
        await client.signal("done", "go", "now")
        await client.submit("order", {"items": ["tea"]}, task_id="waits")
        await client.submit("fails", task_id="failed")
        await client.submit(kept_app.clerk.with_options(task_id="agent"), "what is it worth?")
        for task, status in (("done", "succeeded"), ("agent", "succeeded"), ("failed", "failed")):
            await status_soon(shared, task, status)
        await row_soon(shared, "select 1 from task where task_id = 'waits' and waiting_for = 'signal go'")
        for task in ("done", "waits", "failed", "agent"):
            lines = [msgspec.json.encode(piece) async for piece in client.export(task)]
            (tmp_path / f"{task}.jsonl").write_bytes(b"\n".join(lines))
    kept_app.calls.clear()
    kept_app.script.requests.clear()
    for task in ("done", "waits", "failed", "agent"):
        assert (await replay(app, tmp_path / f"{task}.jsonl")).ended == (task != "waits")
    assert kept_app.calls == kept_app.script.requests == []


@pytest.mark.parametrize("file", sorted(HISTORIES.glob("*.jsonl")), ids=lambda file: file.stem)
async def test_what_was_stored_once_is_followed_for_ever(file: Path) -> None:
    assert (await replay(app, file)).steps > 0
    assert kept_app.calls == kept_app.script.requests == []


def changed(prices: str = "price", total: int = 0, wait: bool = True) -> App:
    """The app after a deploy."""
    other = App("kept")
    go = other.signal("go", str)
    price = other.tool(read_only=True, name=prices)(kept_app.price.fn)
    other.tool(kept_app.charge.fn)
    other.tool(read_only=True)(kept_app.forbidden.fn)

    @other.task
    async def order(task: Task, items: list[str]) -> Any:
        task.now()
        found = await task.gather(*[task.call(price, item) for item in items])
        await task.progress("prices are known", done=1, total=2)
        await task.call(other.tools["charge"], sum(found) + total)
        if not wait:
            return "at once"
        return await task.wait_for(go)

    return other


async def test_another_way_is_named() -> None:
    order = HISTORIES / "order.jsonl"
    with pytest.raises(Different, match=r"Step 6 was charge\(6\).*the code now calls charge\(7\)"):
        await replay(changed(total=1), order)
    with pytest.raises(Different, match=r"Step 2 was price.*the code now calls cost\("):
        await replay(changed("cost"), order)
    with pytest.raises(Different, match=r"Step 7 was forbidden"):
        await replay(changed(), order)
    with pytest.raises(Different, match="the code now ends without it"):
        await replay(changed(wait=False), order)
    with pytest.raises(Different, match="is of kind 'order'; the app has: none"):
        await replay(App("empty"), order)


async def test_what_is_no_export_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    kept = await asyncio.to_thread((HISTORIES / "order.jsonl").read_text)
    version = (
        '{"step":{"step_id":"version-2-1","name":"version","status":"completed","digest":"","seq":99,"result":"stay"}}'
    )
    for text, told in (
        ("nonsense", "is no export of a task"), ("", "holds 0 tasks"), ('{"a": 1}', "holds 0 tasks"), (kept * 2, "holds 2 tasks"),
        (kept.replace('"digest":"', '"digest":"xy'), "is no export of a task"), (kept + version, "asked about another model"),
    ):  # fmt: skip
        await asyncio.to_thread(file.write_text, text)
        with pytest.raises(Unreadable, match=told):
            await replay(app, file)


def test_the_command_says_where_the_code_goes_another_way(tmp_path: Path) -> None:
    def run(spec: str, *more: Path) -> "subprocess.CompletedProcess[str]":
        files = [*more, *sorted(HISTORIES.glob("*.jsonl"))]
        command = [sys.executable, "-m", "outlive", "replay", spec, *map(str, files)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done = run("tests.testing.kept_app:app")
    assert (done.returncode, done.stderr) == (0, "")
    assert "order.jsonl: order followed to its end, 8 steps\n" in done.stdout
    (tmp_path / "empty.jsonl").touch()
    some = run("tests.testing.kept_app:app", tmp_path / "empty.jsonl")
    assert (some.returncode, some.stderr) == (1, "")
    assert "empty.jsonl holds 0 tasks" in some.stdout
    assert "order.jsonl: order followed to its end, 8 steps\n" in some.stdout
    other = run("tests.chaos.apps:app")
    assert other.returncode == 1
    assert "order.jsonl: task order is of kind 'order'; the app has: " in other.stdout


def test_pytest_takes_histories_for_tests(tmp_path: Path) -> None:
    folder = tmp_path / "histories"
    folder.mkdir()
    (folder / "order.jsonl").write_bytes((HISTORIES / "order.jsonl").read_bytes())
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        f"--rootdir={tmp_path}",
        str(folder),
    ]

    def run(spec: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*command, "--outlive-app", spec], cwd=ROOT, capture_output=True, text=True, check=False)

    assert "1 passed" in run("tests.testing.kept_app:app").stdout
    failed = run("tests.chaos.apps:app").stdout
    assert "task order is of kind 'order'" in failed
    assert "Traceback" not in failed
