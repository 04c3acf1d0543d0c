"""A mail, found by its Message-ID in a folder that keeps what was sent: a Maildir, or a mailbox over IMAP.

How to ask: set the header ``Message-ID`` to `message_id` before sending; it follows from the key, so every attempt
carries the same (`outlive.actors.smtp` sends it). Then look where sent mails are kept: the Sent folder if the server files them there by itself, else a
mailbox of your own in Bcc. Many receivers drop a second mail with the same Message-ID, but none promises it.

When a "no" may be trusted: `SETTLE` after the deadline, for a folder that the server fills as it accepts. A copy in Bcc
travels like any mail and may be hours late: leave ``settle`` out then, and a person decides.

How long keys live: SMTP has none (`KEY_TTL` is 0). For a Maildir, where delivery is writing a file, twice under the same
name is once; `message_id` names it.

How to undo: not at all. A second mail that explains is a new effect, and a person's decision.
"""

import imaplib
import urllib.parse
from collections.abc import Mapping
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Final

from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

SETTLE: Final = 900.0
"""Seconds: SMTP allows a server 10 minutes for its answer to the last byte of a mail."""

KEY_TTL: Final = 0.0
"""No keys."""

_IMAP: Final[Mapping[str, tuple[type[imaplib.IMAP4], int]]] = {
    "imap": (imaplib.IMAP4, 143),
    "imaps": (imaplib.IMAP4_SSL, 993),
}
_PATIENCE: Final = 20.0

_HEAD: Final = 256 * 1024
"""Bytes of a mail in which its Message-ID is looked for."""


def message_id(op: Operation, domain: str) -> str:
    """Return the header's value for this operation, angle brackets included.

    Args:
        op: the operation.
        domain: yours, for instance of the sender's address.
    """
    return f"<{op.uuid}@{domain}>"


def in_maildir(op: Operation, folder: Path, *, domain: str) -> Outcome[str]:
    """Ask a Maildir (a synchronous function: it reads files); happened gives the Message-ID.

    Args:
        op: the operation whose answer was lost.
        folder: with cur, new and tmp in it; mails in tmp have not been delivered.
        domain: as given to `message_id`.
    """
    wanted = message_id(op, domain)
    matches = set[str]()  # by the part of the name that stays when a reader moves a mail from new to cur
    try:
        for part in ("new", "cur"):
            mails = (folder / part).iterdir()
            matches |= {mail.name.partition(":")[0] for mail in mails if _carries(mail, wanted)}
    except OSError as error:
        return Outcome.unknown(f"{folder} could not be read as a Maildir: {error}")
    return Outcome.happened(wanted, matches=len(matches)) if matches else Outcome.did_not_happen()


def over_imap(op: Operation, connection: imaplib.IMAP4, *, folder: str = "Sent", domain: str) -> Outcome[str]:
    """Ask an IMAP server (a synchronous function); happened gives the Message-ID.

    Args:
        op: the operation whose answer was lost.
        connection: logged in. The folder is opened read-only, so that nothing is marked as seen.
        folder: where sent mails are kept; servers name it differently.
        domain: as given to `message_id`.
    """
    wanted = message_id(op, domain)
    quoted = '"' + folder.replace("\\", "\\\\").replace('"', '\\"') + '"'
    try:
        answer, said = connection.select(quoted, readonly=True)
        if answer == "OK":
            answer, said = connection.uid("SEARCH", "HEADER", "Message-ID", f'"{wanted}"')
    except (OSError, imaplib.IMAP4.error) as error:
        return Outcome.unknown(f"the mail server could not be asked: {type(error).__name__}: {error}")
    if answer != "OK":
        return Outcome.unknown(f"the mail server answered {answer} for folder {folder}: {said!r}"[:300])
    matches = len((said[0] or b"").split())
    return Outcome.happened(wanted, matches=matches) if matches else Outcome.did_not_happen()


def at_imap(op: Operation, url: str, *, domain: str) -> Outcome[str]:
    """Ask an IMAP server by its URL (a synchronous function): connect, log in, `over_imap`, log out.

    Args:
        op: the operation whose answer was lost.
        url: ``imaps://user:password@host:port/folder`` (``imap://`` without encryption); folder: Sent if left out.
        domain: as given to `message_id`.
    """
    parts = urllib.parse.urlsplit(url)
    host, (kind, port) = parts.hostname or "", _IMAP.get(parts.scheme, _IMAP["imaps"])
    user, password, folder = (urllib.parse.unquote(text or "") for text in (parts.username, parts.password, parts.path))
    try:
        with kind(host, parts.port or port, timeout=_PATIENCE) as connection:
            connection.login(user, password)
            return over_imap(op, connection, folder=folder.strip("/") or "Sent", domain=domain)
    except (OSError, imaplib.IMAP4.error) as error:
        return Outcome.unknown(f"the mail server could not be asked: {type(error).__name__}: {error}")


def _carries(mail: Path, wanted: str) -> bool:
    try:
        with mail.open("rb") as file:
            head = BytesHeaderParser().parsebytes(file.read(_HEAD))
    except FileNotFoundError:  # a reader has just moved it: to where it is looked for next, or away
        return False
    return str(head["Message-ID"]).strip() == wanted
