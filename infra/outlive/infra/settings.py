"""Settings from ``OUTLIVE_*`` environment variables: the field ``lease`` is read from ``OUTLIVE_LEASE``."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta

from outlive.protocol import ids

_KIB: Final = 1024
Seconds = Annotated[float, Meta(gt=0)]
Count = Annotated[int, Meta(ge=1)]


class InvalidSetting(ValueError):
    """A setting cannot be used; the message names its variable, its value and what is wrong."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that can be set. Durations are seconds, sizes bytes. `load` reads the environment."""

    nats_url: str | None = None
    """``nats://host:4222``, several with commas; None: the embedded pair of the state folder."""
    nats_token: str | None = None
    """Token for NATS, if it is not part of the URL."""
    nats_credentials: Path | None = None
    """A ``.creds`` file (JWT and seed) for NATS."""
    postgres_dsn: str | None = None
    """``postgresql://user:password@host:5432/database``; None: the embedded pair of the state folder."""
    tenant: str = ids.DEFAULT_TENANT
    """Whose tasks a client sees."""
    state_dir: Path = Path(".outlive")
    """Folder of the embedded servers and their data; `load` looks for it, see `default_state_dir`."""
    prefix: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-][A-Za-z0-9_-]{0,31}$")] = "outlive"
    """First token of every NATS subject, and of the streams' names."""

    slots: Count = 200
    """Actors that one worker holds in memory."""
    threads: Count = 32
    """Synchronous tools that one worker runs at the same time."""
    abandoned_threads: Count = 100
    """Threads of synchronous tools that outlived their timeouts and still run: a worker with more drains and ends, to be
    started again."""
    pool_size: Count = 10
    """Database connections of one process besides the journal's and the heartbeat's."""
    journal_connections: Count = 2
    """Database connections on which the journal's batches take turns."""

    lease: Seconds = 10.0
    """How long a worker's right to its tasks outlives its last heartbeat."""
    heartbeat: Seconds = 1.0
    """Pause between two heartbeats."""
    probe: Seconds = 0.1
    """Pause between two looks for workers that died."""
    poll: Seconds = 1.0
    """Longest pause before a worker looks for due work, mail and missing actors although nobody woke it."""
    patience: Seconds = 120.0
    """How long a worker may be unhealthy (a server out of reach, a service that stands still) before it gives up."""
    grace: Annotated[float, Meta(ge=0)] = 30.0
    """How long steps in flight may take to end when a worker stops or a task is cancelled, and a thread that has outlived
    its timeout before it is taken to hang."""
    linger: Annotated[float, Meta(ge=0)] = 30.0
    """How long a waiting actor stays in memory."""
    started_after: Annotated[float, Meta(ge=0)] = 0.5
    """A step that lasts longer than this tells that it has started."""
    waived_approvals: str = ""
    """Tools, with commas, that are sent without the yes they want: each such call is told, and is in the audit trail."""
    restart_intensity: Annotated[int, Meta(ge=0)] = 3
    """Deaths of a task since its last completed step before it is quarantined."""

    input_limit: Count = 900 * _KIB
    """Largest encoded input of a task, or value of a signal."""
    result_limit: Count = 16 * _KIB * _KIB
    """Largest encoded result of a step or task."""
    command_retention_hours: Count = 24
    """How long the command stream keeps what was taken in."""
    progress_max_age_days: Count = 365
    """How long the progress stream keeps an event; far above the longest task's life."""

    @classmethod
    def load(cls, **overrides: Any) -> Self:
        """Read the environment; keyword arguments win over it, and None among them means "not given".

        Raises:
            InvalidSetting: a value is no number, out of bounds, no valid tenant, ...
            TypeError: an override is no setting.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        if unknown := given.keys() - set(cls.__struct_fields__):
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
        found: dict[str, Any] = {
            field.name: _convert(variable, given.get(field.name, os.environ.get(variable)), field.type)
            for field in msgspec.structs.fields(cls)
            if (variable := f"OUTLIVE_{field.name.upper()}") and (field.name in given or os.environ.get(variable))
        }
        if "state_dir" not in found:
            found["state_dir"] = default_state_dir()
        return cls(**found)

    @property
    def waived(self) -> frozenset[str]:
        """The tools of `waived_approvals`."""
        return frozenset(name.strip() for name in self.waived_approvals.split(",") if name.strip())

    def __post_init__(self) -> None:
        """Check what a type cannot say."""
        try:
            ids.check_tenant(self.tenant)
        except ids.InvalidId as error:
            raise InvalidSetting(f"OUTLIVE_TENANT: {error}") from None
        if self.heartbeat * 3 > self.lease:
            raise InvalidSetting(
                f"OUTLIVE_HEARTBEAT={self.heartbeat:g}: at least three heartbeats must fit into "
                f"OUTLIVE_LEASE={self.lease:g}"
            )


def _convert(variable: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=False, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"{variable}={value!r} cannot be used: {error}") from None


def _decode(kind: type[Any], value: Any) -> Any:
    return kind(value).expanduser() if issubclass(kind, Path) else value


def default_state_dir() -> Path:
    """Return ``.outlive`` in the current folder if it exists, else ``outlive`` in the user's data folder."""
    here = Path.cwd() / ".outlive"
    return here if here.is_dir() else _user_folder("XDG_DATA_HOME", ".local/share", "Library/Application Support")


def default_cache_dir() -> Path:
    """Return the folder for what can be made again; root's is readable by the user that Postgres runs as."""
    if os.geteuid() == 0 and not os.environ.get("XDG_CACHE_HOME"):
        return Path("/var/cache/outlive")
    return _user_folder("XDG_CACHE_HOME", ".cache", "Library/Caches")


def _user_folder(variable: str, usual: str, mac: str) -> Path:
    if given := os.environ.get(variable):
        return Path(given) / "outlive"
    try:
        return Path.home() / (mac if sys.platform == "darwin" else usual) / "outlive"
    except RuntimeError:  # a user id without a home
        return Path(tempfile.gettempdir()) / f"outlive-{os.getuid()}"
