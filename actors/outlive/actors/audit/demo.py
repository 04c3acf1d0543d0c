"""``outlive demo``: audit this environment, kill its worker twice, lose an answer, ask a person, and count what came of it.

Everything shown is measured in this run. What the end table says was counted outside is read from files that Outlive
does not write for itself: the tracker's database, the report, the Maildir, and the exit status of the workers.
"""

import asyncio
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import msgspec
from anyio import to_thread

from outlive.actors.audit import mail, tracker
from outlive.actors.audit.acts import Acts
from outlive.actors.audit.crew import crew
from outlive.actors.audit.findings import Audit
from outlive.actors.audit.kind import licence_audit
from outlive.actors.audit.naive import naive
from outlive.actors.audit.reports import Report
from outlive.actors.audit.screen import End, Row, Screen, Unanswered, choose
from outlive.actors.chaoskit.processes import WorkerProcess
from outlive.infra import embedded
from outlive.infra.client import Client
from outlive.infra.migrate import migrate
from outlive.infra.settings import Settings
from outlive.protocol.errors import OutliveError

WORKERS: Final = 3
"""Two are killed."""
LOSE: Final = 2
"""The ticket whose answer gets lost; what Outlive itself needs has that many findings."""
LIMIT: Final = 300.0
RECIPIENT: Final = "licences@example.com"
WAITS: Final = 3
"""Exit status when nobody was there to be asked."""


class DemoStuck(OutliveError):
    """The demo did not end. Causes: a machine that is far too busy, or a bug of Outlive; the workers' logs tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was asked for.

    Attributes:
        yes: answer the question with yes.
        keep: leave the servers' data where they were, so that one can look (and answer) with the other commands.
        as_json: print one JSON object per line instead of a live view.
        plain: do it without Outlive, with a retry loop.
        path: audit this site-packages folder instead of the environment.
        to: who gets the mail, by the server of OUTLIVE_SMTP_URL where there is one; None: nobody, it goes into a folder.
    """

    yes: bool = False
    keep: bool = False
    as_json: bool = False
    plain: bool = False
    path: str | None = None
    to: str | None = None


async def demo(options: Options) -> int:
    """Run the demo; return 0 if all that was counted outside Outlive agrees with what Outlive says, else 1.

    Without Outlive it returns 0; 3 means that nobody was there to be asked.

    Raises:
        embedded.ServersMissing, embedded.ServerFailed: no Postgres or NATS can be started here.
        WorkerEnded: a worker could not serve.
        DemoStuck: it did not end within five minutes.
    """
    folder = Path(await to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="outlive-demo-")))
    with choose(as_json=options.as_json) as screen:
        if options.plain:
            screen.end(await naive(screen, folder / "tickets.db", LOSE, options.path))
            return 0
        return await _show(screen, folder, options)


async def _show(screen: Screen, folder: Path, options: Options) -> int:
    try:
        end = await _run(screen, folder, options)
    except TimeoutError:
        raise DemoStuck(f"the demo did not end within {LIMIT:g} s; the logs of its workers are in {folder}") from None
    finally:
        if not options.keep:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(lambda: shutil.rmtree(folder / "servers", ignore_errors=True))
    if isinstance(end, Unanswered):
        screen.tell(end)
        return WAITS
    screen.end(end)
    return 0 if end.ok else 1


async def _run(screen: Screen, folder: Path, options: Options) -> End | Unanswered:
    began, servers = asyncio.get_running_loop().time(), folder / "servers"
    async with embedded.pair(servers, on_progress=screen.doing) as live:
        await migrate(live.postgres_dsn)
        screen.doing(f"starting {WORKERS} workers and a ticket tracker")
        settings = Settings(nats_url=live.nats_url, postgres_dsn=live.postgres_dsn)
        async with (
            tracker.running(folder / "tickets.db", LOSE) as tickets,
            crew(WORKERS, live) as workers,
            Client(settings, by="--yes" if options.yes else "you") as client,
        ):
            pids = {worker.pid: worker.incarnation for worker in (await client.health()).workers}
            acts = Acts(screen, client, {pids[worker.pid]: worker for worker in workers}, yes=options.yes)
            handle = await client.submit(
                licence_audit, path=options.path, tracker=tickets.url, out=str(folder / "reports"),
                to=options.to or RECIPIENT, outbox=None if _posts(options) else str(folder / "outbox"),
            )  # fmt: skip
            await acts.play(handle, tickets, LIMIT)
            if acts.unanswered:
                return _unanswered(acts.unanswered, servers, kept=options.keep)
            audit = await handle.result()
    server = mail.server() if _posts(options) else None
    rows = await to_thread.run_sync(_rows, audit, acts, workers, folder, server)
    ok = bool(acts.crashes) and all(row.said == row.counted for row in rows if row.counted is not None)
    seconds = asyncio.get_running_loop().time() - began - acts.thought
    end = End(ok=ok, verdict=_verdict(acts, ok=ok), seconds=seconds, rows=rows, reports=audit.reports)
    return msgspec.structs.replace(end, kept=str(servers)) if options.keep else end


def _posts(options: Options) -> bool:
    """Whether the mail really goes out: there is a server, and it was said to whom."""
    return options.to is not None and mail.SMTP in os.environ


def _verdict(acts: Acts, *, ok: bool) -> str:
    if not ok:
        return "this is not as it should be: a bug of Outlive, please report it"
    return "the counts agree" if len(acts.crashes) > 1 else "the counts agree; too few findings here to lose an answer"


def _unanswered(command: str, servers: Path, *, kept: bool) -> Unanswered:
    there = f"OUTLIVE_STATE_DIR={servers} "
    return Unanswered(kept=kept, commands=[f"{there}outlive up", there + command] if kept else [command])


def _rows(audit: Audit, acts: Acts, workers: list[WorkerProcess], folder: Path, server: str | None) -> list[Row]:
    """Hold what Outlive says against what lies outside; what a mail server has taken, only its mailbox can tell."""
    report = msgspec.json.decode(Path(audit.reports[-1]).read_bytes(), type=Report)
    tickets = tracker.tickets_in(folder / "tickets.db")
    mails = None if server else len(mail.mails_in(folder / "outbox"))
    repeated = sum(crash.repeated for crash in acts.crashes)
    return [
        Row(what="packages", said=audit.packages, counted=len(report.inspections), where="report.json"),
        Row(what="findings", said=audit.findings, counted=len(report.findings), where="report.json"),
        Row(what="tickets", said=audit.tickets, counted=len(tickets), where="tickets.db"),
        Row(what="mails", said=int(audit.mail is not None), counted=mails, where=server or "outbox"),
        Row(what="crashes", said=len(acts.crashes), counted=sum(w.killed for w in workers), where="exit status"),
        Row(what="steps repeated", said=repeated, counted=None, where="events (read-only)"),
    ]
