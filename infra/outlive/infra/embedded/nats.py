"""An embedded NATS server with JetStream, on loopback, behind a random token."""

import asyncio
import contextlib
import json
import secrets
import signal
from pathlib import Path
from typing import ClassVar

import anyio

from outlive.infra.embedded import binaries
from outlive.infra.embedded.server import Report, Server


class NatsServer(Server):
    """nats-server over ``folder``: its configuration, and JetStream's files in ``folder/jetstream``."""

    name: ClassVar = "NATS"
    quit_signal: ClassVar = signal.SIGTERM

    def __init__(self, folder: Path, *, log: Path, sync_always: bool = False, monitor_port: int | None = None) -> None:
        """Describe a server.

        Args:
            folder: where it lives.
            log: what it says.
            sync_always: an acknowledged message is on the disk (else within two minutes).
            monitor_port: serves ``/healthz``, ``/jsz``, ``/varz`` there, without any token.
        """
        super().__init__(folder, log=log)
        self.token = secrets.token_urlsafe(24)
        """What clients show."""
        self._sync_always = sync_always
        self._monitor_port = monitor_port
        self._program = Path()

    @property
    def url(self) -> str:
        """Where clients connect; valid once the server was started."""
        return f"nats://{self.token}@127.0.0.1:{self.port}"

    @property
    def _config(self) -> Path:
        return self.folder / "nats.conf"

    def _prepare(self, report: Report) -> None:  # noqa: ARG002  # nothing here takes time
        self._program = binaries.nats_server()

    def _command(self) -> list[str]:
        # Written at the last moment, when the port is known. JSON is valid in NATS's configuration language.
        self._config.touch(mode=0o600)
        self._config.write_text("\n".join(f"{name}: {json.dumps(value)}" for name, value in self._settings().items()))
        return [str(self._program), "-c", str(self._config)]

    def _settings(self) -> dict[str, object]:
        return {
            "listen": f"127.0.0.1:{self.port}",
            "authorization": {"token": self.token},
            "jetstream": {
                "store_dir": str(self.folder / "jetstream"),
                **({"sync_interval": "always"} if self._sync_always else {}),
            },
            **({"http": f"127.0.0.1:{self._monitor_port}"} if self._monitor_port else {}),
        }

    async def _answers(self) -> bool:
        # The server listens only after JetStream has read its files; then it speaks first.
        with contextlib.suppress(OSError), anyio.move_on_after(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                return (await reader.readline()).startswith(b"INFO ")
            finally:
                writer.close()
                await writer.wait_closed()
        return False
