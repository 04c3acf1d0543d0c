"""Mail into a Maildir, a folder that mail programs read and a mail server may take over; or to a server by SMTP.

The server is `OUTLIVE_SMTP_URL` of the worker: credentials are no arguments, which are stored and shown. Where
`OUTLIVE_IMAP_URL` names the folder in which that server files what it sent, a lost answer is looked up there.
"""

import os
import urllib.parse
from email.message import EmailMessage
from email.utils import format_datetime
from mailbox import Maildir
from pathlib import Path
from typing import Final

from outlive.actors import smtp
from outlive.actors.recipes.mail import at_imap, in_maildir, message_id
from outlive.protocol.errors import InvalidArguments
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

DOMAIN: Final = "outlive"
SMTP: Final = "OUTLIVE_SMTP_URL"
IMAP: Final = "OUTLIVE_IMAP_URL"


def sender() -> str:
    """Return whom a mail is from: the user of the mail server where that is an address."""
    user = urllib.parse.unquote(urllib.parse.urlsplit(os.environ.get(SMTP, "")).username or "")
    return f"Outlive <{user if '@' in user else 'outlive@localhost'}>"


def message(op: Operation, to: str, subject: str, body: str) -> EmailMessage:
    """Return the mail of an operation; its size does not depend on the time.

    Raises:
        ValueError: recipient or subject have more than one line.
    """
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = sender(), to, subject
    mail["Date"], mail["Message-ID"] = format_datetime(op.started_at), message_id(op, DOMAIN)
    mail.set_content(body)
    return mail


def deliver(outbox: str, mail: EmailMessage) -> str:
    """Put a mail into a Maildir, which is made if need be: the whole of it at once, or nothing. Return its Message-ID."""
    Maildir(outbox).add(bytes(mail))
    return str(mail["Message-ID"])


def post(op: Operation, mail: EmailMessage) -> str:
    """Hand a mail over to the worker's mail server. Return its Message-ID.

    Raises:
        InvalidArguments: the worker has none.
        NotSent, smtplib.SMTPException, OSError: see `outlive.actors.smtp.send`.
    """
    if not (url := os.environ.get(SMTP)):
        raise InvalidArguments(f"this worker has no mail server: start it with {SMTP}=smtp://user:password@host:port")
    return smtp.send(op, url, mail)


def server() -> str:
    """Return the name of the worker's mail server, as a person may see it."""
    return smtp.shown(os.environ.get(SMTP, "")) or "no mail server"


def find_posted(op: Operation) -> Outcome[str]:
    """Find out whether an operation's mail lies where its server files what it sent."""
    return at_imap(op, os.environ[IMAP], domain=DOMAIN)


def find(op: Operation, outbox: str) -> Outcome[str]:
    """Find out whether an operation's mail was delivered."""
    Maildir(outbox)  # a folder that was never made holds no mail, which is an answer too
    return in_maildir(op, Path(outbox), domain=DOMAIN)


def mails_in(outbox: Path) -> list[Path]:
    """Return the mails of a Maildir as files, without any code for mail."""
    return [path for folder in ("new", "cur") for path in (outbox / folder).glob("*")]
