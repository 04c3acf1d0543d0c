"""The built-in task ``licence-audit``: one step per package, a ticket per finding, three reports, and a mail."""

import os

from outlive.actors import App, Operation, Outcome, Task
from outlive.actors.audit import mail, packages, reports, tracker
from outlive.actors.audit.findings import Audit, Finding, Inspection, Package
from outlive.actors.audit.inspection import inspect
from outlive.actors.recipes.mail import SETTLE
from outlive.protocol.errors import StepFailed

app = App("audit")


@app.tool(read_only=True)
def list_packages(path: str | None) -> list[Package]:
    """List what is installed in a site-packages folder, or in the environment of this worker."""
    return packages.installed(path)


@app.tool(read_only=True, timeout=600, title="read {package.name}")
def read_package(package: Package) -> Inspection:
    """Hash every file of a package and work out its licence."""
    return inspect(package)


@app.tool(timeout=10, settle=1, title="open a ticket: {finding.kind} {finding.package}")
def open_ticket(op: Operation, url: str, finding: Finding) -> int:
    """Open a ticket for a finding and return its number. The tracker knows no keys: it may be sent only once."""
    return tracker.send(url, title=finding.title, body="\n".join([finding.text, "", _mark(op)]))


@open_ticket.reconcile
def find_ticket(op: Operation, url: str, finding: Finding) -> Outcome[int]:  # noqa: ARG001  # the operation's key is enough
    """Ask the tracker for the ticket that carries the operation's mark."""
    found = tracker.find(url, _mark(op))
    return Outcome.happened(found[0], matches=len(found)) if found else Outcome.did_not_happen()


def _mark(op: Operation) -> str:
    return f"[outlive {op.key}]"


@app.tool(idempotent=True, title="write the reports to {folder}")
def write_reports(folder: str, report: reports.Report) -> list[str]:
    """Write the three reports: the same files, however often."""
    return reports.write(report, folder)


@app.tool(requires_approval=True, timeout=20, settle=0, title="mail the report to {to}")
def send_mail(op: Operation, to: str, subject: str, body: str, outbox: str) -> str:
    """Put a mail into a Maildir and return its Message-ID."""
    return mail.deliver(outbox, mail.message(op, to, subject, body))


@send_mail.prepare
def preview_mail(op: Operation, to: str, subject: str, body: str, outbox: str) -> str:
    """Say what would be sent."""
    size = len(bytes(mail.message(op, to, subject, body)))
    return f'a mail to {to}, subject "{subject}", {size:,} bytes, into {outbox}; it cannot be called back'


@send_mail.reconcile
def find_mail(op: Operation, to: str, subject: str, body: str, outbox: str) -> Outcome[str]:  # noqa: ARG001  # the operation's id is enough
    """Look for the mail by its Message-ID."""
    return mail.find(op, outbox)


@app.tool(requires_approval=True, timeout=60, settle=SETTLE, title="mail the report to {to}")
def post_mail(op: Operation, to: str, subject: str, body: str) -> str:
    """Hand a mail over to the worker's mail server and return its Message-ID. SMTP knows no keys: it is sent once."""
    return mail.post(op, mail.message(op, to, subject, body))


@post_mail.prepare
def preview_post(op: Operation, to: str, subject: str, body: str) -> str:
    """Say what would be sent, and by whom."""
    size = len(bytes(mail.message(op, to, subject, body)))
    return f'a mail to {to}, subject "{subject}", {size:,} bytes, by {mail.server()}; it cannot be called back'


if mail.IMAP in os.environ:  # else nobody can be asked what became of a mail, and a person decides

    @post_mail.reconcile
    def find_posted(op: Operation, to: str, subject: str, body: str) -> Outcome[str]:  # noqa: ARG001  # the operation's id is enough
        """Look for the mail where its server files what it sent."""
        return mail.find_posted(op)


@app.task(name="licence-audit", title="audit the licences of {path}")
async def licence_audit(
    task: Task,
    path: str | None = None,
    tracker: str | None = None,
    out: str = "licence-audit",
    to: str | None = None,
    outbox: str | None = "outbox",
) -> Audit:
    """Audit the licences and files of installed packages.

    Args:
        task: the task.
        path: a site-packages folder; None = the environment of the worker that runs it.
        tracker: URL of a ticket tracker; None = no tickets.
        out: folder for the reports, seen from the worker's current folder.
        to: who gets the report by mail, after a person's yes; None = no mail.
        outbox: the Maildir for that mail, seen from the worker's current folder; None = by the worker's mail server.
    """
    inspections = await _read(task, path)
    findings = [finding for inspection in inspections for finding in inspection.findings]
    tickets = await _open(task, tracker, findings) if tracker else []
    report = reports.Report(serial=task.uuid(), at=task.now(), inspections=inspections)
    written = await task.call(write_reports, out, report)
    return Audit(
        packages=len(inspections),
        files=sum(inspection.files for inspection in inspections),
        size=sum(inspection.size for inspection in inspections),
        findings=len(findings),
        tickets=len(set(tickets)),
        reports=written,
        mail=await _mail(task, report, to, outbox) if to else None,
    )


async def _read(task: Task, path: str | None) -> list[Inspection]:
    inspections: list[Inspection] = []
    found = await task.call(list_packages, path)
    for n, package in enumerate(found, 1):
        inspections.append(await task.call(read_package, package))
        await task.progress(f"read {n} of {len(found)} packages", done=n, total=len(found))
    return inspections


async def _open(task: Task, url: str, findings: list[Finding]) -> list[int]:
    tickets: list[int] = []
    for n, finding in enumerate(findings, 1):
        tickets.append(await task.call(open_ticket, url, finding))
        await task.progress(f"opened {n} of {len(findings)} tickets", done=n, total=len(findings))
    return tickets


async def _mail(task: Task, report: reports.Report, to: str, outbox: str | None) -> str | None:
    """Send the report and return its Message-ID; a person's no is not a failure of the audit."""
    counted = f"{len(report.findings)} findings in {len(report.inspections)} packages"
    subject, body = f"Licence audit: {counted}", reports.markdown(report)
    try:
        if outbox is None:
            return await task.call(post_mail, to, subject, body)
        return await task.call(send_mail, to, subject, body, outbox)
    except StepFailed as error:
        if error.failure.error_class != "rejected":
            raise
        return None
