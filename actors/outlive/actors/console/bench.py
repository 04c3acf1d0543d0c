"""``bench``: how fast durable steps are on this machine."""

import importlib
from collections.abc import Sequence

import click


@click.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: Sequence[str]) -> int:
    """Measure durable steps per second on this machine."""
    try:
        module = importlib.import_module("outlive.actors.bench")
    except ModuleNotFoundError as error:
        if error.name != "outlive.actors.bench":
            raise
        raise click.ClickException("the benchmark is not part of this installation") from None
    code: int = module.main([*arguments])
    return code
