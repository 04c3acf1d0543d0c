"""The built-in task ``licence-audit``: one step per package, a ticket per finding, three reports."""

from outlive.actors import App, Operation, Task
from outlive.actors.audit import packages, reports
from outlive.actors.audit.findings import Audit, Finding, Inspection, Package
from outlive.actors.audit.inspection import inspect
from outlive.actors.audit.tracker import send

app = App("audit")


@app.tool(read_only=True)
def list_packages(path: str | None) -> list[Package]:
    """List what is installed in a site-packages folder, or in the environment of this worker."""
    return packages.installed(path)


@app.tool(read_only=True, timeout=600, title="read {package.name}")
def read_package(package: Package) -> Inspection:
    """Hash every file of a package and work out its licence."""
    return inspect(package)


@app.tool(idempotent=True, title="open a ticket: {finding.kind} {finding.package}")
def open_ticket(op: Operation, url: str, finding: Finding) -> int:
    """Open a ticket for a finding and return its number; the tracker knows the operation's key."""
    title = f"{finding.kind}: {finding.package} {finding.version}"
    return send(url, title=title, body="\n".join([finding.summary, *finding.details]), key=op.key)


@app.tool(idempotent=True, title="write the reports to {folder}")
def write_reports(folder: str, report: reports.Report) -> list[str]:
    """Write the three reports: the same files, however often."""
    return reports.write(report, folder)


@app.task(name="licence-audit", title="audit the licences of {path}")
async def licence_audit(
    task: Task, path: str | None = None, tracker: str | None = None, out: str = "licence-audit"
) -> Audit:
    """Audit the licences and files of installed packages.

    Args:
        task: the task.
        path: a site-packages folder; None = the environment of the worker that runs it.
        tracker: URL of a ticket tracker; None = no tickets.
        out: folder for the reports, seen from the worker's current folder.
    """
    inspections: list[Inspection] = []
    tickets: list[int] = []
    found = await task.call(list_packages, path)
    for n, package in enumerate(found, 1):
        inspection = await task.call(read_package, package)
        inspections.append(inspection)
        if tracker:
            tickets += [await task.call(open_ticket, tracker, finding) for finding in inspection.findings]
        await task.progress(f"read {n} of {len(found)} packages", done=n, total=len(found))
    report = reports.Report(serial=task.uuid(), at=task.now(), inspections=inspections)
    written = await task.call(write_reports, out, report)
    return Audit(
        packages=len(inspections),
        files=sum(inspection.files for inspection in inspections),
        size=sum(inspection.size for inspection in inspections),
        findings=len(report.findings),
        tickets=len(set(tickets)),
        reports=written,
    )
