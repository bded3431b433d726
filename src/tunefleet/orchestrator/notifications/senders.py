"""Send a notification to where it goes: a web address or, by the server's SMTP, a mailbox. Nothing blocks the loop."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from tunefleet.client.external.ssrf_guard import Reach, addresses_of
from tunefleet.client.external.webhook import post
from tunefleet.errors import ForbiddenError, InputError, MachineError, TunefleetError, UnreachableError
from tunefleet.observability.scrub import scrub
from tunefleet.orchestrator.notifications import formats
from tunefleet.schemas.notify import Told
from tunefleet.settings import ServerSettings
from tunefleet.spec.options.notify import Format

_SMTP_S: Final = 20.0
_PORTS: Final = {"smtp": 587, "smtps": 465}
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a try went.

    Args:
        error: Why it failed, in one sentence; null if it was taken.
        later_s: In how many seconds the receiver wants to be asked again, if it said so.
    """

    error: str | None = None
    lasting: bool = False
    later_s: float | None = None


class Sender:
    """Sends notifications."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._reach = Reach(settings.url_allow, who="server")
        self._names = ThreadPoolExecutor(_THREADS, thread_name_prefix="tunefleet-names")
        # One at a time: a mail server that hangs holds up mail, and nothing else.
        self._mails = ThreadPoolExecutor(1, thread_name_prefix="tunefleet-mail")

    def close(self) -> None:
        """Let go of the threads; what they are doing ends by itself."""
        self._names.shutdown(wait=False, cancel_futures=True)
        self._mails.shutdown(wait=False, cancel_futures=True)

    async def send(self, told: Told, format_: Format, target: str, secret: str | None, now: float) -> Outcome:
        """Try once."""
        try:
            if format_ == "email":
                await self._mail(told, target)
                return Outcome()
            body, headers = formats.payload(told, format_, secret, now)
            answer = await post(target, body, headers, reach=self._reach, executor=self._names)
        except (ForbiddenError, InputError) as error:
            return Outcome(scrub(str(error)), lasting=True)
        except TunefleetError as error:
            return Outcome(scrub(str(error)))
        if answer.taken:
            return Outcome()
        return Outcome(f"{answer.host} answers {answer.status}.", answer.lasting, answer.later_s)

    async def _mail(self, told: Told, target: str) -> None:
        url = mail_server(self._settings)
        message = formats.mail(told, target, self._settings.smtp_from)
        await asyncio.get_running_loop().run_in_executor(self._mails, _deliver, url, message)


def mail_server(settings: ServerSettings) -> SplitResult:
    """Return the address of the mail server."""
    if settings.smtp_url is None:
        raise MachineError("This server sends no mail.", hint="Its operator sets TUNEFLEET_SMTP_URL.")
    url = urlsplit(settings.smtp_url.get_secret_value())
    if url.scheme not in _PORTS or not url.hostname:
        raise MachineError("TUNEFLEET_SMTP_URL is no address of a mail server.", hint="Write smtp://HOST:587.")
    return url


def _deliver(url: SplitResult, message: EmailMessage) -> None:
    host = url.hostname or ""
    try:
        with _connected(url, host) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code, said = next(iter(error.recipients.values()), (0, b""))
        raise _refused(host, code, said) from error
    except smtplib.SMTPResponseException as error:
        raise _refused(host, error.smtp_code, error.smtp_error) from error
    except smtplib.SMTPNotSupportedError as error:
        raise InputError(f"The mail server {host} cannot do what is needed: {error}.") from error
    except (smtplib.SMTPException, OSError) as error:
        raise UnreachableError(f"The mail server {host} cannot be reached: {error}.") from error


def _connected(url: SplitResult, host: str) -> smtplib.SMTP:
    port = url.port or _PORTS[url.scheme]
    context = ssl.create_default_context()
    if url.scheme == "smtps":
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=_SMTP_S, context=context)
    else:
        server = smtplib.SMTP(host, port, timeout=_SMTP_S)
    try:
        server.ehlo()
        safe = url.scheme == "smtps" or all(address.is_loopback for address in addresses_of(host, port))
        if url.scheme == "smtp" and server.has_extn("starttls"):
            server.starttls(context=context)
            server.ehlo()
            safe = True
        if url.username:
            if not safe:
                raise InputError(
                    f"The mail server {host} offers no encryption, and gets no password.", hint="Use smtps://."
                )
            server.login(unquote(url.username), unquote(url.password or ""))
    except BaseException:
        server.close()
        raise
    return server


def _refused(host: str, code: int, said: bytes | str) -> TunefleetError:
    text = said.decode(errors="replace") if isinstance(said, bytes) else said
    sentence = f"The mail server {host} answers {code}: {' '.join(text.split())[:200]}."
    return InputError(sentence) if code >= 500 else UnreachableError(sentence)
