"""Tested answers to "did it happen?", to be called from a tool's ``@tool.reconcile``.

    @app.tool(settle=github.SETTLE)
    async def report(op: Operation, title: str, body: str) -> int: ...   # body + github.marker(op)

    @report.reconcile
    async def find_report(op: Operation, title: str, body: str) -> Outcome[int]:
        return await github.issue(op, "acme/shop", token=TOKEN)

Each module says how to ask, when a "no" may be trusted (`SETTLE`, for the tool's option of that name), how long the
remote remembers a key (`KEY_TTL`, for ``key_ttl``; 0: it has none, so leave ``idempotent`` out) and how to undo.

Every function answers with an `Outcome`; whatever keeps it from asking is ``Outcome.unknown`` with the reason, never a
"no". The numbers are those of services as they are documented and run today: your contract with yours comes first.
"""
