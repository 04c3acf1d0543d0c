"""Errors that are one line for a person: what they know to say needs no traceback."""

import asyncpg
import click

from outlive.actors.console import output
from outlive.actors.signature import RegistrationError
from outlive.infra import embedded
from outlive.infra.bus import BusError
from outlive.infra.deadletters import NoSuchLetter
from outlive.infra.migrate import MigrationRefused
from outlive.infra.questions import QuestionRefused
from outlive.infra.settings import InvalidSetting
from outlive.infra.streams import StreamDrift
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import CommandRefused, OutliveError
from outlive.protocol.ids import InvalidId

KNOWN = (
    embedded.NoServers,
    embedded.PairRunning,
    embedded.ServerFailed,
    embedded.ServersMissing,
    BusError,
    InvalidId,
    InvalidSetting,
    MigrationRefused,
    NoSuchLetter,
    NotStorable,
    OutliveError,
    RegistrationError,
    StreamDrift,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    OSError,
)
"""Their messages say what to do."""


def known(error: BaseException, *, as_json: bool) -> click.ClickException | None:
    """Return an error as one that click shows in a line (exit code 1), or None if it is a bug.

    With `as_json` the contract's own answer to a refused command or question goes to stdout as well.
    """
    error = cause(error)
    if isinstance(error, click.ClickException):
        return error
    if not isinstance(error, KNOWN):
        return None
    if as_json and isinstance(error, CommandRefused):
        output.emit(error.answer)
    if as_json and isinstance(error, QuestionRefused):
        output.emit(error.problem)
    return click.ClickException(str(error) or type(error).__name__)


def cause(error: BaseException) -> BaseException:
    """Return the first error within groups: what came after it is its consequence."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
