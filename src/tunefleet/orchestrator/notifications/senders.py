"""Send notifications to a URL or, by SMTP, to a mailbox, without blocking the event loop."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import EmailMessage
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from tunefleet.client.external.external_http import post_webhook
from tunefleet.client.external.ssrf_guard import SsrfGuard, addresses_of
from tunefleet.errors import ForbiddenError, InputError, MachineError, TunefleetError, UnreachableError
from tunefleet.observability.logs import scrub
from tunefleet.orchestrator.notifications import channel_formats
from tunefleet.schemas.notify import WebhookPayload
from tunefleet.settings import ServerSettings
from tunefleet.spec.options.notify import Format

_SMTP_S: Final = 20.0
_PORTS: Final = {"smtp": 587, "smtps": 465}
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an attempt.

    Args:
        error: Why it failed, in one sentence; None if it was delivered.
        permanent: Whether a retry would fail the same way.
        later_s: Seconds after which the receiver asks for a retry (`Retry-After`), if it did.
    """

    error: str | None = None
    permanent: bool = False
    later_s: float | None = None


class Sender:
    """Sends notifications."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._reach = SsrfGuard(settings.url_allow, who="server")
        # Name resolution blocks and may hang, so it has its own small pool.
        self._names = ThreadPoolExecutor(_THREADS, thread_name_prefix="tunefleet-names")
        # A thread of its own: a mail server that hangs blocks only mail.
        self._mails = ThreadPoolExecutor(1, thread_name_prefix="tunefleet-mail")

    def close(self) -> None:
        """Shut down the threads; running work finishes in the background."""
        self._names.shutdown(wait=False, cancel_futures=True)
        self._mails.shutdown(wait=False, cancel_futures=True)

    async def send(
        self, payload: WebhookPayload, format_: Format, target: str, secret: str | None, now: float
    ) -> Outcome:
        """Send once, without retries."""
        try:
            if format_ == "email":
                await self._mail(payload, target)
                return Outcome()
            body, headers = channel_formats.http_request(payload, format_, secret, now)
            answer = await post_webhook(target, body, headers, reach=self._reach, executor=self._names)
        except (ForbiddenError, InputError) as error:
            return Outcome(scrub(str(error)), permanent=True)
        except TunefleetError as error:
            return Outcome(scrub(str(error)))
        if answer.taken:
            return Outcome()
        return Outcome(f"{answer.host} returned {answer.status}.", answer.lasting, answer.later_s)

    async def _mail(self, payload: WebhookPayload, target: str) -> None:
        url = mail_server(self._settings)
        message = channel_formats.mail(payload, target, self._settings.smtp_from)
        await asyncio.get_running_loop().run_in_executor(self._mails, _deliver, url, message)


def mail_server(settings: ServerSettings) -> SplitResult:
    """Return the URL of the mail server."""
    if settings.smtp_url is None:
        raise MachineError(
            "This server has no mail server configured.", hint="Ask its operator to set TUNEFLEET_SMTP_URL."
        )
    url = urlsplit(settings.smtp_url.get_secret_value())
    if url.scheme not in _PORTS or not url.hostname:
        raise MachineError("TUNEFLEET_SMTP_URL is not a mail server URL.", hint="Set it to smtp://HOST:587.")
    return url


def _deliver(url: SplitResult, message: EmailMessage) -> None:
    host = url.hostname or ""
    try:
        with _connected(url, host) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as error:
        code, reply = next(iter(error.recipients.values()), (0, b""))
        raise _refused(host, code, reply) from error
    except smtplib.SMTPResponseException as error:
        raise _refused(host, error.smtp_code, error.smtp_error) from error
    except smtplib.SMTPNotSupportedError as error:
        raise InputError(f"The mail server {host} lacks a required feature: {error}.") from error
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
        # Without TLS a password is sent only over loopback.
        safe = url.scheme == "smtps" or all(address.is_loopback for address in addresses_of(host, port))
        if url.scheme == "smtp" and server.has_extn("starttls"):
            server.starttls(context=context)
            server.ehlo()
            safe = True
        if url.username:
            if not safe:
                raise InputError(
                    f"The mail server {host} offers no encryption, so no password is sent.", hint="Use smtps://."
                )
            server.login(unquote(url.username), unquote(url.password or ""))
    except BaseException:
        server.close()
        raise
    return server


def _refused(host: str, code: int, reply: bytes | str) -> TunefleetError:
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    sentence = f"The mail server {host} returned {code}: {' '.join(text.split())[:200]}."
    # 5xx is permanent in SMTP; 4xx is worth a retry.
    return InputError(sentence) if code >= 500 else UnreachableError(sentence)
