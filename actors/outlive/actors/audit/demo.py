"""``outlive demo``: audit this environment, SIGKILL the worker that does it at a third, and count what came of it.

Everything shown is measured in this run. What the end table says was counted outside is read from files that Outlive
does not write for itself: the tracker's database, the report, and the exit status of the worker.
"""

import asyncio
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio import to_thread
from rich.console import Console

from outlive.actors.audit import tracker
from outlive.actors.audit.crew import WorkerProcess, crew
from outlive.actors.audit.findings import Audit
from outlive.actors.audit.kind import licence_audit
from outlive.actors.audit.reports import Report
from outlive.actors.audit.screen import Crash, End, JsonScreen, PeopleScreen, Row, Screen
from outlive.infra import embedded
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.infra.migrate import migrate
from outlive.infra.reader import Item
from outlive.infra.settings import Settings
from outlive.protocol.errors import OutliveError
from outlive.protocol.events import NoteEvent, ResumedEvent, StepEvent

WORKERS: Final = 2
LIMIT: Final = 300.0
READ: Final = "read_package"
TICKET: Final = "open_ticket"


class DemoStuck(OutliveError):
    """The demo did not end. Causes: a machine that is far too busy, or a bug of Outlive; the workers' logs tell."""


async def demo(*, keep: bool = False, as_json: bool = False) -> int:
    """Run the demo; return 0 if all that was counted outside Outlive agrees with what Outlive says, else 1.

    Args:
        keep: leave the servers' data where they were, so that one can look with the other commands.
        as_json: print one JSON object per line instead of a live view.

    Raises:
        embedded.ServersMissing, embedded.ServerFailed: no Postgres or NATS can be started here.
        WorkerEnded: a worker could not serve.
        DemoStuck: it did not end within five minutes.
    """
    folder = Path(await to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="outlive-demo-")))
    if as_json:
        return await _show(JsonScreen(), folder, keep=keep)
    with PeopleScreen(Console()) as screen:
        return await _show(screen, folder, keep=keep)


async def _show(screen: Screen, folder: Path, *, keep: bool) -> int:
    try:
        with anyio.fail_after(LIMIT):
            end = await _run(screen, folder)
    except TimeoutError:
        raise DemoStuck(f"the demo did not end within {LIMIT:g} s; the logs of its workers are in {folder}") from None
    finally:
        if not keep:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(lambda: shutil.rmtree(folder / "servers", ignore_errors=True))
    screen.end(msgspec.structs.replace(end, kept=str(folder / "servers")) if keep else end)
    return 0 if end.ok else 1


async def _run(screen: Screen, folder: Path) -> End:
    began, tickets = asyncio.get_running_loop().time(), folder / "tickets.db"
    async with embedded.pair(folder / "servers", on_progress=screen.doing) as live:
        await migrate(live.postgres_dsn)
        screen.doing(f"starting {WORKERS} workers and a ticket tracker")
        settings = Settings(nats_url=live.nats_url, postgres_dsn=live.postgres_dsn)
        async with (
            tracker.running(tickets) as url,
            crew(WORKERS, live, folder) as workers,
            Client(settings) as client,
        ):
            pids = {worker.pid: worker.incarnation for worker in (await client.health()).workers}
            handle = await client.submit(licence_audit, tracker=url, out=str(folder / "reports"))
            crash = await _Watch(screen, client, {pids[worker.pid]: worker for worker in workers}).follow(handle)
            audit = await handle.result()
    rows = await to_thread.run_sync(_rows, audit, crash, workers, tickets)
    ok = all(row.said == row.counted for row in rows if row.counted is not None)
    return End(ok=ok, seconds=asyncio.get_running_loop().time() - began, rows=rows, reports=audit.reports)


class _Watch:
    """Follows the task, kills its worker at a third, and measures what that costs."""

    def __init__(self, screen: Screen, client: Client, workers: dict[str, WorkerProcess]) -> None:
        self._screen = screen
        self._client = client
        self._workers = workers
        self._victim: WorkerProcess | None = None
        self._killed_at = self._after = 0.0
        self._resumed: ResumedEvent | None = None
        self._names: dict[str, str] = {}
        self._done = self._total = self._kept = 0
        self.crash: Crash | None = None

    async def follow(self, handle: Handle[Audit]) -> Crash:
        """Show every event of the task until its last one."""
        async for event in handle.events():
            self._screen.event(event)
            await self._see(event, handle.task_id)
        if self.crash is None:
            raise RuntimeError(f"task {handle.task_id} ended without a crash to show: {self._done} of {self._total}")
        return self.crash

    async def _see(self, event: Item, task_id: str) -> None:
        match event:
            case StepEvent(status="completed"):
                self._names[event.step_id] = event.name
                self._look()
            case NoteEvent(done=int(done), total=int(total)) if self._resumed is None:
                self._done, self._total = done, total
                if self._victim is None and done * 3 >= total:
                    await self._kill(task_id)
            case ResumedEvent() if self._victim and self._resumed is None:
                self._after = asyncio.get_running_loop().time() - self._killed_at
                self._kept = Counter(self._names.values())[READ]
                self._resumed = event
                self._look()
            case _:
                pass

    async def _kill(self, task_id: str) -> None:
        owner = (await self._client.get(task_id)).owner
        if owner in self._workers:  # None for a moment after a step of its own: the next note comes soon
            self._victim = self._workers[owner]
            self._killed_at = asyncio.get_running_loop().time()
            await self._victim.kill()

    def _look(self) -> None:
        """Tell of the crash once the names of all repeated steps are known."""
        resumed, victim = self._resumed, self._victim
        if self.crash or not resumed or not victim or not self._names.keys() >= set(resumed.steps_repeated):
            return
        again = Counter(self._names[step_id] for step_id in resumed.steps_repeated)
        self.crash = Crash(
            killed=victim.pid,
            successor=self._workers[resumed.worker].pid,
            at=self._done,
            total=self._total,
            after=self._after,
            kept=self._kept,
            repeated=again[READ],
            resent=again[TICKET],
        )
        self._screen.crash(self.crash)


def _rows(audit: Audit, crash: Crash, workers: list[WorkerProcess], file: Path) -> list[Row]:
    """Hold what Outlive says against what lies outside."""
    report = msgspec.json.decode(Path(audit.reports[-1]).read_bytes(), type=Report)
    tickets = tracker.tickets_in(file)
    return [
        Row(what="packages", said=audit.packages, counted=len(report.inspections), where="report.json"),
        Row(what="findings", said=audit.findings, counted=len(report.findings), where="report.json"),
        Row(what="tickets", said=audit.tickets, counted=len(tickets), where="tickets.db"),
        Row(what="crashes", said=1, counted=sum(worker.killed for worker in workers), where="exit status"),
        Row(what="repeated (read-only)", said=crash.repeated, counted=None, where="progress events"),
    ]
