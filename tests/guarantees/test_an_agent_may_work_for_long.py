"""An agent of many steps: what it stores grows by its steps, a request stays as large, what is old can be recalled."""

import itertools
import json
import random
import re
import statistics
import string
from collections.abc import Sequence
from typing import Any, Final

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from outlive.actors import App, Client
from outlive.actors.agents.context import tokens
from outlive.actors.testing import Server
from tests.actors.scene import dying, rows, serving, status_soon
from tests.agents.script import finish

PAYLOAD: Final = 5_000
"""Characters of each result."""

BYTES_PER_STEP: Final = 2_500
"""What a decision and its call may store besides the result: two events, two rows of the ledger, an outline, what it cost."""

BUDGET: Final = 8_000
STORED: Final = " + ".join(
    f"coalesce((select sum(pg_column_size(t.*)) from {table} t where task_id = $1), 0)"  # noqa: S608  # of these tables
    for table in ("fact", "operation", "attempt", "inbox", "spend", "task")
)
DECIDED: Final = (
    "select at from fact where task_id = $1 and name = 'reader__model.request' and type = 'step' order by seq"
)


class Reader:
    """A model that has one file after the other read; before the end it looks at the third one again, and then asks."""

    def __init__(self, files: int, *, recalls_at: int = 0) -> None:
        self.sizes: list[int] = []
        self.again = ""  # what was shown when it had recalled
        self.model = FunctionModel(self._answer, model_name="reader")
        self._files = files
        self._recalls_at = recalls_at
        self._third = ""

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text = str(messages[-1].parts[0].content)  # type: ignore[union-attr]
        tools = [
            (tool.name, tool.description, tool.parameters_json_schema)
            for tool in (*info.function_tools, *info.output_tools)
        ]
        self.sizes.append(tokens(text) + tokens(info.instructions or "") + tokens(json.dumps(tools)))
        asked = len(self.sizes) - 1
        if asked == 3:
            self._third = re.findall(r'<result step="([^"]+)"', text)[-1]
        if self._recalls_at and asked == self._recalls_at:
            return _choose("recall", {"step": self._third})
        if self._recalls_at and asked == self._recalls_at + 1:
            self.again = text
        number = asked - (self._recalls_at > 0 and asked > self._recalls_at)
        if number < self._files:
            return _choose("read", {"number": number + 1})
        return _choose("ask_person", {"question": "Enough?"}) if number == self._files else _choose(*finish(number)[0])


def _choose(name: str, given: dict[str, Any]) -> ModelResponse:
    return ModelResponse(parts=[ToolCallPart(name, given)])


def body(number: int) -> str:
    """Give a result that no compression makes small."""
    return f"file {number}: " + "".join(random.Random(number).choices(string.ascii_letters, k=PAYLOAD))


def _app(reader: Reader) -> App:
    app = App("long")

    @app.tool(read_only=True)
    def read(number: int) -> str:
        """Read a file."""
        return body(number)

    app.agent("reader", model=reader.model, tools=[read], output=int, plans=False, context_tokens=BUDGET)
    return app


async def _read(server: Server, files: int, *, recalls_at: int = 0) -> tuple[Reader, int]:
    """Have so many files read, up to the question; then its worker dies, and another one goes on. Gives bytes stored."""
    reader, task = Reader(files, recalls_at=recalls_at), f"long-{files}"
    app = _app(reader)
    async with dying(app, server) as client:
        await client.submit(app.kinds["reader"].with_options(task_id=task), "go")
        await status_soon(server, task, "paused", within=280)
        [(stored,)] = [tuple(row) for row in await rows(server, f"select {STORED}", task)]
    _report(files, [row["at"].timestamp() for row in await rows(server, DECIDED, task)], int(stored))
    asked = len(reader.sizes)
    assert asked == files + 1 + bool(recalls_at)
    async with serving(app, server) as client:
        await _go_on(client, task)
    assert len(reader.sizes) == asked + 1, "nothing that was decided is asked again"
    assert max(reader.sizes) <= BUDGET, "within its budget"
    assert stored <= files * (1.1 * PAYLOAD + BYTES_PER_STEP)
    return reader, int(stored)


async def _go_on(client: Client, task: str) -> None:
    (reason,) = (await client.get(task)).reasons
    await client.answer(task, reason.step_id or "", "yes")
    await client.result(task, int, 120)


def _report(files: int, times: Sequence[float], stored: int) -> None:
    costs = [after - before for before, after in itertools.pairwise(times)]
    fifth = len(costs) // 5
    first, last = statistics.median(costs[:fifth]), statistics.median(costs[-fifth:])
    print(
        f"{files} files: {stored / files - PAYLOAD:.0f} bytes a file besides its text; a decision and its call took "
        f"{first * 1e3:.1f} ms at the start, {last * 1e3:.1f} ms at the end"
    )


async def test_what_is_stored_grows_by_the_steps_alone(shared: Server) -> None:
    stored = [(await _read(shared, files))[1] for files in (25, 50, 100)]

    for half, whole in itertools.pairwise(stored):
        assert whole <= 2.1 * half, stored


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_same_of_hundreds_of_steps(shared: Server) -> None:
    stored = [(await _read(shared, files))[1] for files in (100, 200, 400)]

    for half, whole in itertools.pairwise(stored):
        assert whole <= 2.1 * half, stored


@pytest.mark.parametrize(
    ("files", "recalls_at"), [(60, 50), pytest.param(1000, 900, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_what_the_third_step_gave_can_be_looked_at_long_after(
    shared: Server, files: int, recalls_at: int
) -> None:
    reader, _ = await _read(shared, files, recalls_at=recalls_at)

    assert body(3)[:2000] in reader.again
    assert body(recalls_at)[:1000] in reader.again, "beside the newest"
