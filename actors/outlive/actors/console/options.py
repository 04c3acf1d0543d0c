"""Options that many commands share. They may stand before or behind the command's name."""

import getpass
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from outlive.infra.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Given:
    """What was said by shared options.

    Attributes:
        overrides: settings that win over the environment.
        as_json: stdout is for a program.
    """

    overrides: dict[str, Any] = field(default_factory=dict[str, Any])
    as_json: bool = False

    def settings(self) -> "Settings":
        """Return the settings of this call. Raises `InvalidSetting`."""
        from outlive.infra.settings import Settings  # noqa: PLC0415  # --help needs none

        return Settings.load(**self.overrides)


pass_given: Final = click.make_pass_decorator(Given, ensure=True)


def _override(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.ensure_object(Given).overrides[str(param.name)] = value


def _json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Given).as_json = True


def _setting(*names: str, variable: str, text: str, **options: Any) -> Callable[[F], F]:
    return click.option(*names, callback=_override, expose_value=False, help=f"{text}  [env: {variable}]", **options)


json_option: Final = click.option(
    "--json", "as_json", is_flag=True, callback=_json, expose_value=False, help="Write JSON to stdout, nothing else."
)
dsn_option: Final = _setting(
    "--postgres-dsn", metavar="DSN", variable="OUTLIVE_POSTGRES_DSN", text="Where Postgres is."
)
nats_option: Final = _setting("--nats-url", metavar="URL", variable="OUTLIVE_NATS_URL", text="Where NATS is.")
_CLIENT: Final = (
    nats_option,
    _setting(
        "--state-dir", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path),
        variable="OUTLIVE_STATE_DIR", text="Folder of the embedded servers.",
    ),
    _setting("--tenant", metavar="NAME", variable="OUTLIVE_TENANT", text="Whose tasks."),
    json_option,
)  # fmt: skip


def client_options(function: F) -> F:
    """Add what a command needs that talks to NATS alone."""
    return reduce(lambda decorated, option: option(decorated), reversed(_CLIENT), function)


def by_option(function: F) -> F:
    """Add ``--by``, whose default is the user of the operating system."""
    return click.option("--by", metavar="NAME", default=_user, help="Who gives the command.  [default: you]")(function)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name
        return f"uid {os.getuid()}"
