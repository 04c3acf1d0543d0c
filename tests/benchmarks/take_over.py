"""How long the README's example stands still when its worker is killed: writes ``results/take_over.json``.

    python -m tests.benchmarks.take_over [RUNS]

Two workers, 15,000 files; the one that reads is killed. Measured is, by the database's clock, the time from the last
event of the killed worker to the first of the other one.
"""

import asyncio
import json
import os
import platform
import re
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from outlive.actors.testing import Server, server
from tests.benchmarks.figures import RESULTS
from tests.chaos.harness import ROOT, WorkerProcess, fetch, submit_many, until

FILES = 15_000
GAP = """
select extract(epoch from resumed.at - before.at)::float8 as seconds
  from outlive_store.fact resumed join outlive_store.fact before on before.seq = resumed.seq - 1
   and before.task_id = resumed.task_id
 where resumed.type = 'resumed'
"""


def _project(folder: Path) -> None:
    folder.chmod(0o755)  # Postgres may run as another user
    (example,) = re.findall(
        r"^```python\n(# todo.py.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (folder / "todo.py").write_text(example)
    for n in range(FILES):
        (folder / f"m{n:05}.py").write_text("x = 1\n# TODO: more\n")


async def _once(own: Server, folder: Path) -> float:
    variables = {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    async with (
        WorkerProcess(own, "todo:app", environment=variables) as one,
        WorkerProcess(own, "todo:app", environment=variables) as two,
    ):
        await submit_many(own, "collect", 1, {"folder": str(folder), "to": "you@example.com"})
        owner = "select w.pid from outlive.task t join outlive_store.worker w on w.incarnation = t.owner where t.steps > 1000"
        pid = await until(own, owner)
        (one if one.pid == pid else two).kill()
        await until(own, "select count(*) > 0 from outlive_store.fact where type = 'resumed'")
        return float((await fetch(own, GAP))[0]["seconds"])


async def measure(runs: int) -> None:
    """Measure, and write the result."""
    seconds: list[float] = []
    with tempfile.TemporaryDirectory(prefix="outlive-take-over-") as name:
        folder = Path(name)
        _project(folder)
        for n in range(runs):
            async with server(state_dir=folder / f"pair{n}") as own:
                seconds.append(round(await _once(own, folder), 3))
    conditions = {
        "command": f"python -m tests.benchmarks.take_over {runs}",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
        "load": round(os.getloadavg()[0], 1),
        "at": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    text = json.dumps({"conditions": conditions, "figures": {"seconds": seconds}}, indent=2)
    (RESULTS / "take_over.json").write_text(text + "\n")


if __name__ == "__main__":
    asyncio.run(measure(*map(int, sys.argv[1:2] or ["6"])))
