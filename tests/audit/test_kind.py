"""The audit as a task for users: no tracker and no mail unless asked for; a no to the mail is no failure."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outlive.actors.audit import mail
from outlive.actors.audit.findings import Audit
from outlive.actors.audit.kind import licence_audit
from outlive.actors.testing import Server
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.protocol.commands import Resolve
from outlive.protocol.events import ApprovalEvent
from outlive.protocol.tools import Operation
from tests.actors.postbox import postbox
from tests.audit.made_up import SitePackages
from tests.chaos.harness import WorkerProcess, until


@pytest.fixture
async def client(shared: Server) -> AsyncIterator[Client]:
    """A client of a worker that serves the audit."""
    async with WorkerProcess(shared, "outlive.actors.audit:app"), Client(shared.settings, by="ann") as connected:
        yield connected


@pytest.fixture
def site(tmp_path: Path) -> str:
    """Two packages, one of them with a finding."""
    made_up = SitePackages(tmp_path / "site")
    made_up.add("good", "License-Expression: MIT\n")
    made_up.add("silent")
    return str(made_up.folder)


async def test_without_tracker_and_recipient_there_are_reports_only(client: Client, site: str, tmp_path: Path) -> None:
    audit = await client.submit("licence-audit", {"path": site, "out": str(tmp_path / "out")})
    result = await client.result(audit.task_id, dict[str, object], timeout=60)
    assert (result["findings"], result["tickets"], result.get("mail")) == (1, 0, None)
    assert (tmp_path / "out/REPORT.md").is_file()


@pytest.mark.parametrize("yes", [True, False])
async def test_a_mail_goes_out_after_a_yes_only(client: Client, site: str, tmp_path: Path, *, yes: bool) -> None:
    outbox = tmp_path / "outbox"
    handle = await client.submit(
        licence_audit, path=site, out=str(tmp_path / "out"), to="ann@example.com", outbox=str(outbox)
    )
    asked = ""
    async for event in handle.events():
        if isinstance(event, ApprovalEvent) and event.status == "asked":
            asked = event.message
            await (client.approve if yes else client.reject)(event.task_id, event.operation_id)
    result = await handle.result(60)
    files = await asyncio.to_thread(mail.mails_in, outbox)
    assert (result.mail is not None, len(files)) == (yes, int(yes))
    for file in files:
        assert f"{file.stat().st_size:,} bytes" in asked
        assert f"Message-ID: {result.mail}" in file.read_text()


@pytest.mark.parametrize("searched", [True, False], ids=["mailbox", "nobody to ask"])
async def test_a_posted_mail_whose_answer_is_lost_is_looked_up_or_a_person_is_asked(
    shared: Server, site: str, tmp_path: Path, *, searched: bool
) -> None:
    """SMTP says nothing afterwards: the mailbox is searched where one is named, and nothing is sent again."""
    with postbox() as box:
        box.says = {"mail": None}  # taken, and the line is cut
        variables = {mail.SMTP: box.smtp, **({mail.IMAP: box.imap} if searched else {})}
        async with (
            WorkerProcess(shared, "outlive.actors.audit:app", environment=variables),
            Client(shared.settings, by="ann") as client,
        ):
            handle = await client.submit(
                licence_audit, path=site, out=str(tmp_path / "out"), to="ann@example.com", outbox=None
            )
            asked = await _say_yes(client, handle)
            assert f"by {box.smtp.removeprefix('smtp://')}; it cannot be called back" in asked
            if not searched:
                paused = "select status = 'paused' and waiting_for like '%unknown%' from outlive_store.task"
                await until(shared, paused)
                (reason,) = (await client.get(handle.task_id)).reasons
                assert "post_mail may or may not have happened" in reason.message
                (identity,) = box.identities
                resolve = Resolve(
                    operation_id=reason.step_id or "", verdict="happened", result=identity, reason="it is here"
                )
                await client.command(handle.task_id, resolve)
            result = await handle.result(60)
        assert [result.mail] == box.identities


async def _say_yes(client: Client, handle: Handle[Audit]) -> str:
    """Approve the first question; what it was."""
    async for event in handle.events():
        if isinstance(event, ApprovalEvent) and event.status == "asked":
            await client.approve(event.task_id, event.operation_id)
            return event.message
    raise AssertionError("nothing was asked")


def test_a_delivered_mail_is_found_and_another_is_not(tmp_path: Path) -> None:
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    one, other = (Operation(key=f"default/t:{n}:1", started_at=at, deadline=at) for n in (1, 10))
    outbox = str(tmp_path / "outbox")
    assert mail.find(one, outbox).verdict == "did_not_happen"
    sent = mail.deliver(outbox, mail.message(one, "ann@example.com", "s", "body\n"))
    assert (mail.find(one, outbox).verdict, mail.find(one, outbox).result) == ("happened", sent)
    assert mail.find(other, outbox).verdict == "did_not_happen"
    with pytest.raises(ValueError, match="linefeed"):
        mail.message(one, "ann@example.com\nBcc: eve@example.com", "s", "body")
