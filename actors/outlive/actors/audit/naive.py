"""``outlive demo --naive``: the same audit and the same lost answer, with the retry loop that everybody writes.

Nothing of Outlive runs here, and nothing is killed: one lost answer is enough.
"""

import asyncio
from pathlib import Path
from typing import Final

import httpx
from anyio import to_thread

from outlive.actors.audit import packages, tracker
from outlive.actors.audit.findings import Finding
from outlive.actors.audit.inspection import inspect
from outlive.actors.audit.screen import End, Row, Screen

PATIENCE: Final = 2.0
"""Seconds after which the loop takes an answer for lost."""


async def naive(screen: Screen, file: Path, lose: int, path: str | None = None) -> End:
    """Run the audit in this process, against a tracker on ``file`` that loses the answer to ticket ``lose``."""
    began = asyncio.get_running_loop().time()
    screen.doing("without Outlive: a plain loop in one process, the same tickets, the same lost answer")
    findings = await _read(screen, path)
    async with tracker.running(file, lose) as running:
        for n, finding in enumerate(findings, 1):
            await to_thread.run_sync(_open, running.url, finding)
            screen.moved(f"opened {n} of {len(findings)} tickets", n, len(findings))
    said, counted = len(findings), len(await to_thread.run_sync(tracker.tickets_in, file))
    why = "the answer to one was lost, so the loop sent it again" if counted > said else "too few to lose an answer"
    return End(
        ok=counted == said,
        verdict=f"{counted} tickets for {said} findings: {why}",
        title="the same audit without Outlive",
        who="the loop says",
        seconds=asyncio.get_running_loop().time() - began,
        rows=[
            Row(what="findings", said=said, counted=None, where="its memory"),
            Row(what="tickets", said=said, counted=counted, where=file.name),
        ],
        reports=[],
    )


async def _read(screen: Screen, path: str | None) -> list[Finding]:
    findings: list[Finding] = []
    found = await to_thread.run_sync(packages.installed, path)
    for n, package in enumerate(found, 1):
        findings += (await to_thread.run_sync(inspect, package)).findings
        screen.moved(f"read {n} of {len(found)} packages", n, len(found))
    return findings


def _open(url: str, finding: Finding) -> int:
    """Open a ticket, however often it takes."""
    while True:
        try:
            return tracker.send(url, title=finding.title, body=finding.text, timeout=PATIENCE)
        except httpx.TransportError:  # no answer: try again, as one does
            continue
