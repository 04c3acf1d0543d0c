"""SMTP for tools: a mail is handed over, and what goes wrong says what it means for the effect.

    @app.tool(requires_approval=True, timeout=60)
    def post_mail(op: Operation, to: str, body: str) -> str:
        return smtp.send(op, "smtps://me:secret@mail.example.com", message(op, to, body))

Accepted means handed over: what a server does with a mail afterwards comes back as a mail, or not at all. SMTP has no
keys and no question "did you take it?": when the server's last answer is lost, it may have taken the mail. A tool
without a reconciler goes to a person then; `outlive.actors.recipes.mail` asks the mailbox where sent mails are kept.
"""

import contextlib
import smtplib
import ssl
import urllib.parse
from collections.abc import Generator
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import getaddresses
from typing import Final

from outlive.protocol.errors import InvalidArguments, NotSent
from outlive.protocol.tools import Operation

CONNECT: Final = 10.0
"""Seconds after which a server that does not answer is given up before the mail is sent."""

_GOODBYE: Final = 1.0
_PORTS: Final = {"smtp": 25, "smtps": 465}


def send(op: Operation, url: str, mail: EmailMessage) -> str:
    """Hand a mail over to a server, to all of its recipients or to none; return its Message-ID. Blocks.

    Args:
        op: its deadline bounds the wait for the server's word on the mail.
        url: ``smtp://user:password@host:port``, encrypted where the server offers it, or ``smtps://``; user and port
            may be left out, and what is no letter or digit is written as in every URL (``%40`` for ``@``).
        mail: with From, To (Cc, Bcc) and a Message-ID that follows from the operation.

    Raises:
        InvalidArguments: the URL or an address is none, or no Message-ID is set.
        NotSent: the server could not be reached, or did not want to hear of the mail: it has not been sent.
        smtplib.SMTPException: the server's refusal; the class of each is known.
        OSError: no answer; the mail may have been taken.
    """
    sender, recipients = _envelope(mail)
    identity = str(mail["Message-ID"] or "").strip()
    if not identity:
        raise InvalidArguments("the mail has no Message-ID: without one nobody can look for it")
    del mail["Bcc"]
    with _before(op, url) as server:
        _introduce(server, sender, recipients)
        server.timeout = _seconds(op)
        if server.sock is not None:
            server.sock.settimeout(server.timeout)
        _hand_over(server, mail.as_bytes(policy=SMTP))
    return identity


def shown(url: str) -> str:
    """Return the host (and port) of a URL, without user and password."""
    parts = urllib.parse.urlsplit(url)
    return parts.netloc.rpartition("@")[2]


def _hand_over(server: smtplib.SMTP, mail: bytes) -> None:
    code, said = server.data(mail)  # the answer to the last byte: from here on a lost one leaves both possible
    if code != 250:
        raise smtplib.SMTPDataError(code, said)


@contextlib.contextmanager
def _before(op: Operation, url: str) -> Generator[smtplib.SMTP]:
    """Connect, encrypt, log in. The connection ends with the block; how it ends does not matter any more."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidArguments("the URL of a mail server reads smtp://user:password@host:port or smtps://...")
    tls = ssl.create_default_context()
    port, within = parts.port or _PORTS[parts.scheme], min(CONNECT, _seconds(op) / 2)
    with _nothing_sent():
        if parts.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(parts.hostname, port, timeout=within, context=tls)
        else:
            server = smtplib.SMTP(parts.hostname, port, timeout=within)
    try:
        with _nothing_sent():
            server.ehlo_or_helo_if_needed()
            if parts.scheme == "smtp" and server.has_extn("starttls"):
                server.starttls(context=tls)
                server.ehlo()
            if parts.username:
                server.login(urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        yield server
    except BaseException:
        server.close()
        raise
    with contextlib.suppress(OSError):
        if server.sock is not None:
            server.sock.settimeout(_GOODBYE)
        server.quit()
    server.close()


def _introduce(server: smtplib.SMTP, sender: str, recipients: list[str]) -> None:
    """Name sender and recipients. One that is refused ends it: the mail goes to all of them or to none."""
    with _nothing_sent():
        code, said = server.mail(sender)
        if code != 250:
            raise smtplib.SMTPSenderRefused(code, said, sender)
        for recipient in recipients:
            code, said = server.rcpt(recipient)
            if code not in {250, 251}:
                raise smtplib.SMTPRecipientsRefused({recipient: (code, said)})


@contextlib.contextmanager
def _nothing_sent() -> Generator[None]:
    """While the mail itself has not been sent, a lost connection proves that it was not taken."""
    try:
        yield
    except OSError as error:  # all of smtplib's are
        if isinstance(error, smtplib.SMTPException) and not isinstance(error, smtplib.SMTPServerDisconnected):
            raise  # the server's refusal
        raise NotSent(f"the mail was not sent: {type(error).__name__}: {error}") from error


def _envelope(mail: EmailMessage) -> tuple[str, list[str]]:
    def addresses(*names: str) -> list[str]:
        headers = [str(value) for name in names for value in mail.get_all(name, [])]
        return list(dict.fromkeys(address for _, address in getaddresses(headers)))

    sender, recipients = addresses("From")[:1], addresses("To", "Cc", "Bcc")
    wrong = [address for address in (*sender, *recipients) if "@" not in address or not address.isascii()]
    if wrong or not sender or not recipients:
        raise InvalidArguments(f"a mail needs From and To with addresses like you@example.com, not {wrong or 'none'}")
    return sender[0], recipients


def _seconds(op: Operation) -> float:
    """Return how long the operation may take: a span of the database's time, so no clock of ours need be right."""
    return max(0.001, (op.deadline - op.started_at).total_seconds())
