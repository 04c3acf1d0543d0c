"""Exit codes."""

from typing import Final

DONE: Final = 0
FAILED: Final = 1
"""It failed, or was refused."""
USAGE: Final = 2
"""The command line cannot be read; click's own code for it."""
PERSON: Final = 3
"""A task waits for a person."""
INTERRUPTED: Final = 130
"""Interrupted, or left alone what it watched."""
