"""Agents that do a real job: each with a scripted model that needs no network, and any other by name.

``outlive example analyst FOLDER`` reads a code base and writes a report, ``outlive example contracts FOLDER`` reviews
contracts and asks a person what they do not say, ``outlive example migration FOLDER`` edits files after a yes to each.
``--model openai:gpt-5`` (any model of pydantic-ai) puts a real one in the script's place;
``outlive up outlive.actors.examples:app`` serves all three.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlive.actors.app import App

    app: App

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Make the app when it is asked for: agents need an extra."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outlive.actors.app import App  # noqa: PLC0415  # see above
    from outlive.actors.examples import analyst, contracts, migration  # noqa: PLC0415  # see above

    made = globals()["app"] = App("examples")
    for example in (analyst, contracts, migration):
        made.include(example.app)
    return made
