"""Every named statement finds its rows in the big tables by an index, whatever has piled up in them.

Planned as it is at run time: with the settings of the connections that run it, and arguments of the kind that it gets.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest

from outlive.actors.testing import Server
from outlive.infra import database, sql

BIG: Final = frozenset({"task", "fact", "inbox", "operation", "attempt", "death", "audit", "identity"})
SMALL: Final = frozenset({"task_due", "task_mail", "task_owner", "task_sweep", "task_tell"})
"""Indexes of what is wanted or held now, however many tasks there are: these may be read from end to end."""
BY_JOURNAL_CONNECTIONS: Final = frozenset({"journal", "clerk", "ingest"})
FILES: Final = (
    "buckets",
    "claims",
    "clerk",
    "deadletters",
    "identity",
    "ingest",
    "journal",
    "liveness",
    "relay",
    "store",
    "supervisor",
)
"""All but the doctor's (a person waits for it), and those that only migrate."""

FILL: Final = """
insert into task (tenant, task_id, kind, status, owner, digest, input, parent, due_at, mail_at, sweep_at, tell_at, inbox_head)
select 'default', 't' || n, 'k' || n % 3, case when n % 10 = 0 then 'running' else 'succeeded' end,
       case when n % 200 = 0 then '00000000-0000-0000-0000-000000000001'::uuid end, '', '{}', case when n % 50 = 0 then 't1' end,
       case when n % 97 = 0 then now() end, case when n % 997 = 0 then now() end, case when n % 499 = 0 then now() end,
       case when n % 1999 = 0 then now() end, 1
  from generate_series(1, 20000) n;
insert into fact (tenant, task_id, seq, type, step_id, name, status, event)
select 'default', 't' || n % 1000, n / 1000, 'step', 's' || n, 'look', 'completed', '{}' from generate_series(1, 20000) n;
insert into inbox (tenant, command_id, task_id, pos, verb, digest, body)
select 'default', 'c' || n, 't' || n, 1, 'signal', '', '{}' from generate_series(1, 20000) n;
insert into operation (tenant, task_id, step_id, operation_id, name, status, attempt, epoch, worker, digest, arguments, started_at)
select 'default', 't' || n % 1000, n::text, '1', 'post', 'succeeded', 1, 1, '00000000-0000-0000-0000-000000000001', '', '', now()
  from generate_series(1, 20000) n;
insert into attempt (tenant, task_id, step_id, operation_id, attempt, worker, started_at)
select 'default', 't' || n % 1000, n::text, '1', 1, '00000000-0000-0000-0000-000000000001', now() from generate_series(1, 20000) n;
insert into death (tenant, task_id, epoch, worker, steps, reason)
select 'default', 't' || n, 1, '00000000-0000-0000-0000-000000000001', 0, 'process ended' from generate_series(1, 20000) n;
insert into identity (tenant, tool, scope, name, task_id, step_id, operation_id, digest, since)
select 'default', 'refund', '', 'o-' || n, 't' || n, '1', '1', '', 0 from generate_series(1, 20000) n;
insert into audit (tenant, task_id, who, what) select 'default', 't' || n, 'ann', 'cancel' from generate_series(1, 20000) n;
insert into worker (incarnation, server_started, until, host, pid, version, protocol, kinds, slots)
values ('00000000-0000-0000-0000-000000000001', now(), now() + interval '1 hour', 'h', 1, '1', 1, '{k1}', 200);
analyze;
"""

ARGUMENTS: Final = {
    "text": "'t1'",
    "text[]": "'{t1,t2,t3}'",
    "bigint": "1",
    "bigint[]": "'{1,1,1}'",
    "integer": "1",
    "smallint[]": "'{1,1,1}'",
    "smallint": "1",
    "double precision": "1",
    "boolean": "true",
    "boolean[]": "'{true,true,true}'",
    "bytea": "''",
    "bytea[]": "array[''::bytea, '', '']",
    "jsonb": "'{}'",
    "jsonb[]": "array['{}'::jsonb, '{}', '{}']",
    "uuid": "'00000000-0000-0000-0000-000000000001'",
    "uuid[]": "'{00000000-0000-0000-0000-000000000001}'",
    "timestamp with time zone": "now()",
}


@pytest.fixture(scope="module")
def names() -> list[tuple[str, str]]:
    return [(file, name) for file in FILES for name in sql.load(file)]


async def test_the_big_tables_are_read_by_index_alone(grown: Server, names: list[tuple[str, str]]) -> None:
    journal: Any = await database.connect(grown.postgres_dsn, application_name="test", journal=True)
    found: list[str] = []
    async with (
        database.Pool(grown.postgres_dsn, application_name="test", size=1) as pool,
        pool.acquire() as connection,
    ):
        for file, name in names:
            by = journal if file in BY_JOURNAL_CONNECTIONS else connection
            plan = await _plan(by, sql.load(file)[name])
            found += [f"{file}.{name}: {scan}" for scan in _full_scans(plan)]
    await journal.close()
    assert not found, "\n".join(found)


@pytest.fixture(name="grown")
async def grown_store(shared: Server) -> Server:
    connection: Any = await database.connect(shared.postgres_dsn, application_name="test")
    await connection.execute(FILL)
    await connection.close()
    return shared


async def _plan(connection: Any, statement: str) -> dict[str, Any]:
    """Plan a statement as a prepared one."""
    await connection.execute(f"prepare p as {statement}")
    types = await connection.fetchval("select parameter_types::text[] from pg_prepared_statements where name = 'p'")
    arguments = [ARGUMENTS.get(kind, "null") for kind in types]
    call = f"p({', '.join(arguments)})" if arguments else "p"
    rows = await connection.fetch(f"explain (format json) execute {call}")
    await connection.execute("deallocate p")
    plan: dict[str, Any] = json.loads(rows[0][0])[0]["Plan"]
    return plan


def _full_scans(plan: dict[str, Any]) -> Iterator[str]:
    """Where a plan reads a big table from end to end, be it by way of an index."""
    for node in _nodes(plan):
        table, index = node.get("Relation Name"), node.get("Index Name", "")
        if table in BIG and node["Node Type"] == "Seq Scan":
            yield f"Seq Scan on {table}"
        elif node["Node Type"].startswith("Index") and table in BIG and "Index Cond" not in node and index not in SMALL:
            yield f"all of {index}"


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


async def test_a_scan_is_found(grown: Server) -> None:
    """The proof itself: statements without an index for what they ask."""
    connection: Any = await database.connect(grown.postgres_dsn, application_name="test", journal=True)
    scans = {
        "select count(*) from task where kind = $1": "Seq Scan on task",
        "select max(task_id) from task where tenant > $1 or kind = $1": "Seq Scan on task",
        "select seq from fact order by tenant, task_id, seq": "all of fact_pkey",
    }
    for statement, scan in scans.items():
        assert list(_full_scans(await _plan(connection, statement))) == [scan], statement
    await connection.close()
