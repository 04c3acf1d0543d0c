"""`outlive watch TASK --tokens` shows what a model writes while it writes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.console.installation import Installation, until

TALKER: Final = """
import asyncio
from pathlib import Path
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from outlive.actors import App

app = App("talker")

async def stream(messages, info):
    while not Path("go").exists():
        yield "Let me think. "
        await asyncio.sleep(0.05)
    yield {1: DeltaToolCall(name="finish", json_args='{"output": 7}', tool_call_id="c")}

app.agent("talker", model=FunctionModel(stream_function=stream), output=int, plans=False, stream=True)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    """A folder with an agent that talks until it is told to finish."""
    here = Installation(tmp_path)
    (tmp_path / "talker.py").write_text(TALKER)
    yield here
    here.close()


def test_words_are_shown_while_they_come(here: Installation) -> None:
    up = here.start("up", "talker:app", "--json")
    assert up.stdout is not None
    assert up.stdout.readline()
    here.run("submit", "talker", "goal=go", "--task-id", "t")
    watch = here.start("watch", "t", "--tokens")
    here.wait_for_log("Let me think. Let me think.")
    (here.folder / "go").touch()
    out, _ = watch.communicate(timeout=60)
    assert (watch.returncode, out) == (0, "7\n")
    until(lambda: "Let me think. \n" in here.log)
    refused = here.run("watch", "t", "--tokens", "--json", code=2)
    assert "leave out --json" in refused.stderr
    up.terminate()
    up.communicate(timeout=40)
