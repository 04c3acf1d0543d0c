"""Commands that are lost, come twice or late on their way from the stream: NATS frames, read as they pass a proxy."""

import asyncio
from random import Random
from typing import Final

_KINDS: Final = (b"MSG ", b"HMSG ")
_END: Final = b"\r\n"


class CommandFaults:
    """What happens to commands that pass; shared by all connections of a worker to NATS. Shares are 0 to 1."""

    def __init__(self, prefix: str) -> None:
        """Hit commands under this prefix; nothing is on yet."""
        self._start = f"{prefix}.".encode()
        self.random = Random()
        self.drop = 0.0
        self.duplicate = 0.0
        self.delay = 0.0
        self.late = 0.0
        """Seconds by which delayed ones come late."""

    @property
    def on(self) -> bool:
        """Whether any is."""
        return bool(self.drop or self.duplicate or self.delay)

    def are_meant(self, subject: bytes) -> bool:
        """Whether a message is a command: ``{prefix}.{tenant}.cmd. ...``."""
        return subject.startswith(self._start) and subject.split(b".", 3)[2:3] == [b"cmd"]


class Frames:
    """What a server sends on one connection, cut into frames."""

    def __init__(self, faults: CommandFaults, writer: asyncio.StreamWriter) -> None:
        """Write what is left of them to `writer`."""
        self._faults = faults
        self._writer = writer
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take a piece of the connection; whole frames go on, each in its way."""
        data, at = self._rest + data, 0
        passing = bytearray()
        while (end := _frame(data, at)) > 0:
            frame = data[at:end]
            at = end
            if self._faults.on and frame.startswith(_KINDS) and self._faults.are_meant(frame.split(b" ", 2)[1]):
                passing += self._hit(frame)
            else:
                passing += frame
        self._rest = data[at:]
        if passing:
            self._writer.write(bytes(passing))

    def _hit(self, frame: bytes) -> bytes:
        faults, chance = self._faults, self._faults.random.random
        if faults.drop and chance() < faults.drop:
            return b""
        if faults.delay and chance() < faults.delay:
            asyncio.get_running_loop().call_later(faults.late, self._write_late, frame)
            return b""
        return frame + frame if faults.duplicate and chance() < faults.duplicate else frame

    def _write_late(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame)


def _frame(data: bytes, at: int) -> int:
    """Return where the frame that begins at `at` ends; 0 when it is not whole yet."""
    line = data.find(_END, at)
    if line < 0:
        return 0
    end = line + len(_END)
    if data.startswith(_KINDS, at):
        end += int(data[at:line].rpartition(b" ")[2]) + len(_END)
    return end if end <= len(data) else 0
