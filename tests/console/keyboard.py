"""Typing a command."""

from anyio import to_thread
from click.testing import CliRunner, Result

from outlive.actors.console.cli import cli


async def typed(*words: str) -> Result:
    """Type a command, in this process."""
    return await to_thread.run_sync(CliRunner().invoke, cli, words)
