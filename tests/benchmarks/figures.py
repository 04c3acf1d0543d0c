"""The figures of the READMEs, made from the committed results beside this file."""

import json
from pathlib import Path
from typing import Any, Final

from tests.guarantees.documents import tables_of

RESULTS: Final = Path(__file__).parent / "results"


def result(name: str) -> Any:
    """What a run wrote: ``conditions`` and ``figures``."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def speed() -> str:
    """Steps per second, from the result of ``outlive bench``."""
    run = result("bench")
    figures, conditions = run["figures"], run["conditions"]
    return f"""\
`{conditions["command"]}` ({conditions["machine"]}, {conditions["work"]}; medians):

| steps | durable steps/s | against the pool's {figures["commits_per_s"]:,} commits/s |
|---|---|---|
| each result durable before the next step (`durable="before_next"`) | {figures["steps_per_s"]:,} | {figures["before_next_ratio"]} |
| effects: intent durable before, outcome after | {figures["effect_steps_per_s"]:,} | {figures["effect_ratio"]} |
| read-only, as by default | {figures["default_steps_per_s"]:,} | {figures["default_ratio"]} |

One task alone: {figures["step_p50_ms"]} ms from step to step (p99 {figures["step_p99_ms"]:.1f} ms); \
{figures["submit_to_first_step_ms"]} ms from submit to the end of its first step."""


def take_over() -> str:
    """How long the example stood still when its worker was killed."""
    run = result("take_over")
    seconds = run["figures"]["seconds"]
    middle = sorted(seconds)[(len(seconds) - 1) // 2]
    return (
        f"In {len(seconds)} runs with a worker killed while it read, {min(seconds):.2f} to {max(seconds):.2f} s, "
        f"median {middle:.2f},\npassed from its last event to the first of the other one "
        f"({run['conditions']['machine']}, under a load of {run['conditions']['load']:.0f})."
    )


COMPARED: Final = {
    "W1": ("durable steps/s", "durable steps/s, 50 tasks at once"),
    "W2": ("step p50, ms", "from step to step, one task, ms"),
    "W3": ("kill to progress of all, s", "SIGKILL to progress of all, s"),
    "W4": ("all woken and done, s", "2,000 waiting tasks woken and done, s"),
}
"""What of the results the first page shows: by work, the column there and its head here."""


def comparison() -> str:
    """Outlive beside its peers, from results.md."""
    text = (RESULTS.parent / "results.md").read_text("utf-8")
    systems: dict[str, list[str]] = {}
    for section in text.split("\n## ")[1:]:
        (table,) = tables_of(section)
        if (work := section.partition(":")[0]) in COMPARED:
            column = COMPARED[work][0]
            for name, cell in zip(table.column("system"), table.column(column), strict=True):
                systems.setdefault(name, []).append(cell)
    heads = [head for _, head in COMPARED.values()]
    rows = [f"| {name} | {' | '.join(cells)} |" for name, cells in systems.items()]
    return "\n".join([f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|", *rows])
