"""Payloads of notifications for each kind of receiver, and their signatures. Pure.

Webhooks are signed as specified by https://www.standardwebhooks.com, so that its libraries can verify them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Final

import orjson

import tunefleet
from tunefleet.schemas.notify import WebhookPayload
from tunefleet.spec.options.notify import MAILTO, Format

PREFIX: Final = "whsec_"
_DISCORD_MAX: Final = 2000
_SLACK_MAX: Final = 3000
_SUBJECT_MAX: Final = 150


def new_secret() -> str:
    """Return a new signing secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def is_signing_secret(text: str) -> bool:
    """Whether a text is a valid signing secret."""
    try:
        return text.startswith(PREFIX) and len(base64.b64decode(text.removeprefix(PREFIX), validate=True)) >= 24
    except (binascii.Error, ValueError):
        return False


def http_request(
    payload: WebhookPayload, format_: Format, secret: str | None, sent_at: float
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request."""
    headers = {"Content-Type": "application/json", "User-Agent": f"tunefleet/{tunefleet.__version__}"}
    if format_ == "slack":
        return orjson.dumps({"text": slack_text(payload)}), headers
    if format_ == "discord":
        # Task names are user input: they must not mention (ping) Discord users.
        return orjson.dumps({"content": discord_text(payload), "allowed_mentions": {"parse": []}}), headers
    body = payload.model_dump_json().encode()
    headers |= {"Webhook-Id": payload.id, "Webhook-Timestamp": str(int(sent_at)), "Tunefleet-Event": payload.event}
    if secret is not None:
        headers["Webhook-Signature"] = signature(secret, payload.id, int(sent_at), body)
    return body, headers


def signature(secret: str, id_: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a body and its timestamp."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    mac = hmac.new(key, f"{id_}.{timestamp}.".encode() + body, hashlib.sha256)
    return "v1," + base64.b64encode(mac.digest()).decode()


def slack_text(payload: WebhookPayload) -> str:
    """Return a notification in Slack's markup; Mattermost and Rocket.Chat read it too."""
    text = f"*{_slack(payload.title)}*\n{_slack(payload.text)}\n{_slack_more(payload)}"
    return text[:_SLACK_MAX]


def discord_text(payload: WebhookPayload) -> str:
    """Return a notification in Discord's markup."""
    more = f"`{payload.command}`" + (f" · <{payload.url}>" if payload.url else "")
    head = f"**{_discord(payload.title)}**\n"
    available = _DISCORD_MAX - len(head) - len(more) - 2
    text = _discord(payload.text)
    return f"{head}{text if len(text) <= available else text[: available - 1] + '…'}\n{more}"


def mail(payload: WebhookPayload, target: str, sender: str) -> EmailMessage:
    """Return a notification as an e-mail."""
    message = EmailMessage()
    message["Subject"] = " ".join(f"[tunefleet] {payload.title}".split())[:_SUBJECT_MAX]
    message["From"] = sender
    message["To"] = target[len(MAILTO) :]
    message["Date"] = format_datetime(payload.at)
    # The same at each attempt, so that a mailbox can detect a duplicate.
    message["Message-ID"] = f"<{payload.id}@{sender.rpartition('@')[2].strip('> ') or 'tunefleet'}>"
    message["Auto-Submitted"] = "auto-generated"
    lines = [payload.text, "", f"Details: {payload.command}"]
    message.set_content("\n".join(lines + ([payload.url] if payload.url else [])) + "\n")
    return message


def _slack(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _slack_more(payload: WebhookPayload) -> str:
    return f"`{payload.command}`" + (f" · <{payload.url}|open>" if payload.url else "")


def _discord(text: str) -> str:
    return "".join(f"\\{character}" if character in "*_~`|>\\" else character for character in text)
