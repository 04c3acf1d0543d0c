"""The audit as a task for users: no tracker and no mail unless asked for; a no to the mail is no failure."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outlive.actors.audit import mail
from outlive.actors.audit.kind import licence_audit
from outlive.actors.testing import Server
from outlive.infra.client import Client
from outlive.protocol.events import ApprovalEvent
from outlive.protocol.tools import Operation
from tests.audit.made_up import SitePackages
from tests.chaos.harness import WorkerProcess


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
