"""A step updates its task's row in place (HOT): no index names a column that a step changes."""

import re
from typing import Final

from outlive.actors.testing import FakeService, Server
from outlive.infra import sql
from tests.chaos.harness import WorkerProcess, fetch, submit_many, wait_all_final

RARE: Final = ("(b.s)", "b.leave", "b.status", "b.waiting_for")
"""What an assignment of the journal's update speaks of when it changes its column only now and then."""

INDEXED: Final = """
select c.relname as index, a.attname as column
  from pg_index i
  join pg_class c on c.oid = i.indexrelid
  left join pg_depend d on d.classid = 'pg_class'::regclass and d.objid = i.indexrelid and d.refobjid = i.indrelid
  join pg_attribute a on a.attrelid = i.indrelid and (a.attnum = any(i.indkey) or a.attnum = d.refobjsubid) and a.attnum > 0
 where i.indrelid = ('outlive_store.' || $1)::regclass
"""
UPDATES: Final = """
select n_tup_upd as updates, n_tup_hot_upd as hot from pg_stat_user_tables where schemaname = 'outlive_store' and relname = 'task'
"""


def _changed(statement: str, table: str) -> dict[str, str]:
    """The columns that an update of a statement sets, each with what it is set to."""
    [body] = re.findall(rf"update {table}(?: \w+)?\s+set (.*?)\n    from ", statement, re.DOTALL)
    assignments = re.split(r",\n\s+(?=\w+ = )", body)
    return {part.strip().split(" = ", 1)[0]: part.split(" = ", 1)[1] for part in assignments}


async def test_no_index_names_a_column_that_a_step_changes(shared: Server) -> None:
    changed = _changed(sql.load("journal")["batch"], "task")
    each_step = {column for column, value in changed.items() if not any(word in value for word in RARE)}
    assert each_step == {
        "version", "last_seq", "published", "published_at", "applied", "steps", "current_step", "updated_at",
    }  # fmt: skip
    indexed = {row["column"]: row["index"] for row in await fetch(shared, INDEXED, "task")}
    assert {"tenant", "task_id", "due_at", "owner", "created_at"} <= indexed.keys(), (
        "the proof reads keys and predicates"
    )
    assert not each_step & indexed.keys(), f"{each_step & indexed.keys()}: {indexed}"


async def test_no_index_names_a_column_that_a_heartbeat_changes(shared: Server) -> None:
    [assignments] = re.findall(r"update worker\s+set (.*?)\n where", sql.load("liveness")["beat"], re.DOTALL)
    changed = set(re.findall(r"(\w+) = ", assignments))
    assert {"until", "busy", "health"} <= changed
    assert not changed & {row["column"] for row in await fetch(shared, INDEXED, "worker")}


async def test_the_outcome_of_an_operation_is_written_in_place(shared: Server) -> None:
    conflict = re.search(
        r"on conflict \(tenant, task_id, step_id, operation_id\) do update\s+set (.*?)\),\na as",
        sql.load("journal")["batch"],
        re.DOTALL,
    )
    assert conflict is not None
    changed = set(re.findall(r"(\w+) = excluded", conflict[1]))
    assert {"status", "ended_at"} <= changed
    assert not changed & {row["column"] for row in await fetch(shared, INDEXED, "operation")}


async def test_a_real_run_updates_in_place(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, service=service) as worker:
        await wait_all_final(shared, await submit_many(shared, "mixed", 30, {"seconds": 0.01}))
        worker.terminate()  # its connections tell what they did when they end
        await worker.exited()
    [row] = await fetch(shared, UPDATES)
    print(f"\n{row['hot']} of {row['updates']} updates of task rows were HOT")
    assert row["updates"] > 150
    assert row["hot"] > row["updates"] / 2
