"""Which model an example works with: the one that the environment names, else the script."""

import os
from typing import Any, Final

from outlive.actors.examples import scripted

MODEL: Final = "OUTLIVE_EXAMPLE_MODEL"
"""Environment variable with the name of a model of pydantic-ai, for instance ``openai:gpt-5``."""


def chosen(decide: scripted.Decide) -> dict[str, Any]:
    """Return the options of an agent that say with what it decides; a script is kept for tasks that began with it."""
    script = scripted.model(decide)
    name = os.environ.get(MODEL)
    return {"model": name, "also": [script]} if name else {"model": script}
