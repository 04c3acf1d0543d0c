"""Mail into a Maildir: a folder that mail programs read and a mail server may take over."""

from email.message import EmailMessage
from email.utils import format_datetime
from mailbox import Maildir
from pathlib import Path
from typing import Final

from outlive.actors.recipes.mail import in_maildir, message_id
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

SENDER: Final = "Outlive <outlive@localhost>"
DOMAIN: Final = "outlive"


def message(op: Operation, to: str, subject: str, body: str) -> EmailMessage:
    """Return the mail of an operation; its size does not depend on the time.

    Raises:
        ValueError: recipient or subject have more than one line.
    """
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = SENDER, to, subject
    mail["Date"], mail["Message-ID"] = format_datetime(op.started_at), message_id(op, DOMAIN)
    mail.set_content(body)
    return mail


def deliver(outbox: str, mail: EmailMessage) -> str:
    """Put a mail into a Maildir, which is made if need be: the whole of it at once, or nothing. Return its Message-ID."""
    Maildir(outbox).add(bytes(mail))
    return str(mail["Message-ID"])


def find(op: Operation, outbox: str) -> Outcome[str]:
    """Find out whether an operation's mail was delivered."""
    Maildir(outbox)  # a folder that was never made holds no mail, which is an answer too
    return in_maildir(op, Path(outbox), domain=DOMAIN)


def mails_in(outbox: Path) -> list[Path]:
    """Return the mails of a Maildir as files, without any code for mail."""
    return [path for folder in ("new", "cur") for path in (outbox / folder).glob("*")]
