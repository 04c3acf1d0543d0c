"""An embedded Postgres: initialised once per version and user in the cache, copied for each state folder."""

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import asyncpg

from outlive.infra.database import TRANSIENT
from outlive.infra.embedded import binaries
from outlive.infra.embedded.binaries import User
from outlive.infra.embedded.server import Report, Server
from outlive.infra.settings import default_cache_dir

_NAME: Final = "outlive"
_INITDB: Final = ("-U", _NAME, "-A", "scram-sha-256", "-E", "UTF8", "--locale=C", "--no-instructions")
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # paths of sockets are limited to 107 bytes, those of state folders are not
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
}


class PostgresServer(Server):
    """Postgres on loopback with a password, its data in ``folder/data``."""

    name: ClassVar = "Postgres"
    quit_signal: ClassVar = signal.SIGINT  # "fast": ends sessions, writes a checkpoint

    def __init__(self, folder: Path, *, log: Path) -> None:
        """Describe a server; root lets it run as another user (see `binaries.unprivileged`)."""
        super().__init__(folder, log=log, user=binaries.unprivileged())
        self._data = folder / "data"
        self._programs = Path()
        self._password = ""

    @property
    def dsn(self) -> str:
        """Where clients connect; valid once the server was started."""
        return f"postgresql://{_NAME}:{self._password}@127.0.0.1:{self.port}/postgres"

    def _home(self) -> Path:
        return self._data

    def _prepare(self, report: Report) -> None:
        self._programs = binaries.postgres_folder(self._user)
        if not self._data.exists():
            _copy(_template(self._programs, self._user, report), self.folder)
            # The copy must survive a power cut before the first commit relies on it.
            _initdb(self._programs, self._user, self._data, "--sync-only")
        self._password = (self.folder / "password").read_text().strip()

    def _command(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        return [str(self._programs / "postgres"), "-D", _seen(self._data, self._user), "-p", str(self.port), *settings]

    async def _answers(self) -> bool:
        try:
            connection = await asyncpg.connect(self.dsn, timeout=2)
        except TRANSIENT:
            return False
        await connection.close()
        return True


def _seen(folder: Path, user: User | None) -> str:
    """Return how a server that runs as ``user`` and is started in ``folder`` names it.

    Where root drops its rights, a parent folder may be closed to the server's user (root's home is); the way through
    ``/proc`` leads to the folder without passing through its parents. Postgres 15 cannot go that way.
    """
    closed = user and not all(parent.stat().st_mode & 0o001 for parent in folder.parents)
    return "/proc/self/cwd" if closed and sys.platform == "linux" else str(folder)


def _initdb(programs: Path, user: User | None, data: Path, *options: str) -> None:
    done = subprocess.run(
        [programs / "initdb", "-D", _seen(data, user), *options], cwd=data, capture_output=True, text=True, check=False,
        user=user.uid if user else None, group=user.gid if user else None, extra_groups=[] if user else None,
    )  # fmt: skip
    if done.returncode:
        raise binaries.ServersMissing(f"initdb failed: {(done.stderr or done.stdout).strip()}")


def _template(programs: Path, user: User | None, report: Report) -> Path:
    cache = default_cache_dir()
    template = cache / f"postgres-{binaries.postgres_version(programs)}-{user.name if user else 'own'}"
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / "lock"):
        if not template.exists():
            report("preparing Postgres (once on this machine, some seconds)")
            _make(programs, user, template)
    return template


def _make(programs: Path, user: User | None, template: Path) -> None:
    with tempfile.TemporaryDirectory(dir=template.parent, ignore_cleanup_errors=True) as scratch:
        fresh = Path(scratch) / "postgres"
        fresh.parent.chmod(0o711)
        data, password = fresh / "data", fresh / "password"
        data.mkdir(mode=0o700, parents=True)
        password.touch(mode=0o600)
        password.write_text(secrets.token_urlsafe(24))
        if user:
            for path in (fresh, data, password):
                os.chown(path, user.uid, user.gid)
        _initdb(programs, user, data, *_INITDB, f"--pwfile={_seen(data, user)}/../password", "--no-sync")
        fresh.rename(template)


def _copy(template: Path, folder: Path) -> None:
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    # `cp` keeps owners, and clones where the file system can.
    subprocess.run(["cp", "-a", template, fresh], check=True)
    for path in fresh.iterdir():
        path.rename(folder / path.name)
    fresh.rmdir()


@contextmanager
def _alone(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
