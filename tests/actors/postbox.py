"""A mail server on a loopback port, as much of one as a mail needs; its mailbox can be searched over IMAP."""

import re
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import cast


@dataclass
class Postbox:
    """What came, and how the server treats the next one.

    Attributes:
        mails: what was taken.
        recipients: of all mails, in order.
        says: answers by verb, by address, or by "mail" for the word on a whole one; None cuts the line.
    """

    mails: list[Message] = field(default_factory=list[Message])
    recipients: list[str] = field(default_factory=list[str])
    says: Mapping[str, str | None] = field(default_factory=dict[str, "str | None"])
    smtp: str = ""
    imap: str = ""

    @property
    def identities(self) -> list[str]:
        """The Message-IDs of all mails."""
        return [mail["Message-ID"] for mail in self.mails]


class _Handler(StreamRequestHandler):
    box: Postbox

    def say(self, text: str) -> None:
        self.wfile.write(text.encode() + b"\r\n")


class _Smtp(_Handler):
    def handle(self) -> None:
        self.say("220 ready")
        while line := self.rfile.readline().decode().strip():
            verb = line[:4].upper()
            address = line.partition("<")[2].partition(">")[0]
            friendly = "354 go on" if verb == "DATA" else "221 bye" if verb == "QUIT" else "250 fine"
            said = self.box.says.get(address, self.box.says.get(verb, friendly))
            if said is None:
                return
            self.say(said)
            if verb == "RCPT" and said.startswith("250"):
                self.box.recipients.append(address)
            if verb == "DATA" and said.startswith("354") and not self._take():
                return

    def _take(self) -> bool:
        lines: list[bytes] = []
        while (line := self.rfile.readline()) not in {b".\r\n", b""}:
            lines.append(line.removeprefix(b".") if line.startswith(b"..") else line)
        said = self.box.says.get("mail", "250 taken")
        if said is None or said.startswith("250"):
            self.box.mails.append(message_from_bytes(b"".join(lines)))
        if said is not None:
            self.say(said)
        return said is not None


class _Imap(_Handler):
    def handle(self) -> None:
        self.say("* OK ready")
        while line := self.rfile.readline().decode().strip():
            tag, command = line.split(" ", 1)
            for answer in self._answers(command):
                self.say(answer)
            failed = command.startswith("EXAMINE") and "Sent" not in command
            self.say(f"{tag} {'NO no such folder' if failed else 'OK done'}")

    def _answers(self, command: str) -> list[str]:
        if command == "CAPABILITY":
            return ["* CAPABILITY IMAP4rev1"]
        if command.startswith("EXAMINE"):
            return [f"* {len(self.box.mails)} EXISTS"]
        if wanted := re.fullmatch(r'UID SEARCH HEADER Message-ID "(.*)"', command):
            found = [str(n) for n, identity in enumerate(self.box.identities, 1) if identity == wanted[1]]
            return [" ".join(["* SEARCH", *found])]
        return ["* BYE"] if command == "LOGOUT" else []


class _Server(ThreadingTCPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is part of the tests."""


@contextmanager
def postbox() -> Generator[Postbox]:
    """Start one; tests set what it says."""
    box = Postbox()
    with ExitStack() as stack:
        for handler in (_Smtp, _Imap):
            kind = cast("type[StreamRequestHandler]", type(handler.__name__, (handler,), {"box": box}))
            server = stack.enter_context(_Server(("127.0.0.1", 0), kind))
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            name, user = ("smtp", "") if handler is _Smtp else ("imap", "you:secret@")
            setattr(box, name, f"{name}://{user}127.0.0.1:{server.server_address[1]}")
        yield box
