"""`spec.notify`: notifications about a task, and valid notification addresses."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from tunefleet.spec.base import Block, as_list, is_url, wrong

# The events. A task that failed because it ran out of memory, stalled or lost its worker counts as `failed` too.
# The last two are for campaigns: a better model is promoted; the budget does not cover the next task.
Occasion = Literal["done", "failed", "out_of_memory", "stalled", "paused", "worker_lost", "promoted", "budget"]
# `webhook` is Tunefleet's own JSON; `slack` and `discord` are the formats of their incoming webhooks.
Format = Literal["webhook", "slack", "discord", "email"]
OCCASIONS: Final[tuple[Occasion, ...]] = get_args(Occasion)
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
MAILTO: Final = "mailto:"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# A plain address only: display names and comments could inject headers into a mail.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}")
_MAX: Final = 2000


def is_address(to: str) -> bool:
    """Whether a string is an address and not a channel's name."""
    return is_url(to) or to.lower().startswith(MAILTO)


def format_of(target: str) -> Format:
    """Return the format of an address, derived from its scheme and host."""
    if target.lower().startswith(MAILTO):
        return "email"
    parts = urlsplit(target)
    host = (parts.hostname or "").lower()
    if host == "hooks.slack.com":
        return "slack"
    if host in {"discord.com", "discordapp.com"} and parts.path.startswith("/api/webhooks/"):
        return "discord"
    return "webhook"


def address_fault(target: str, chosen: str | None) -> str | None:
    """Return what is wrong with an address or its format; `None` if nothing is.

    Args:
        target: An http or https URL, or `mailto:` and an e-mail address.
        chosen: The format; `None` for the default of the address.
    """
    if len(target) > _MAX or any(character.isspace() or not character.isprintable() for character in target):
        return f"must be one line without spaces, of {_MAX} characters at most"
    mail = target.lower().startswith(MAILTO)
    if mail and not _ADDRESS.fullmatch(target[len(MAILTO) :]):
        return "must be one plain e-mail address after mailto:"
    if not mail and not _reachable(target):
        return "must start with http://, https:// or mailto:, and name a host"
    if chosen is not None and mail != (chosen == "email"):
        return f"does not support the format {chosen}"
    return None


def is_channel_name(name: str) -> bool:
    """Whether a string is a valid channel name."""
    return _NAME.fullmatch(name) is not None


def _reachable(target: str) -> bool:
    try:
        parts = urlsplit(target)
        return is_url(target) and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _to(value: str) -> str:
    channel = "create a channel with `tunefleet notify add`, which keeps the address private, and use its name here"
    # Secrets exist on workers only, but notifications are sent by the server.
    if "${" in value:
        raise wrong("cannot contain a secret or a reference: the server does not resolve them in URLs", channel)
    if not is_address(value):
        if not is_channel_name(value):
            raise wrong("is neither a URL (https://…, mailto:…) nor the name of a channel")
        return value
    fault = address_fault(value, None)
    if fault is not None:
        raise wrong(fault)
    # The workflow file is stored and shown to everyone in the project.
    if is_url(value) and "@" in urlsplit(value).netloc:
        raise wrong("contains a password, which everyone who can read the workflow could see", channel)
    return value


class NotifySpec(Block):
    """`spec.notify[]`: send notifications about this task."""

    to: Annotated[str, Field(min_length=1), AfterValidator(_to)]
    """Address (`https://…`, `mailto:…`) or name of one of your channels (`tunefleet notify ls`). An address is visible
    to everyone who can read the workflow, and requests to it are not signed."""
    on: Annotated[tuple[Occasion, ...], BeforeValidator(as_list), Field(min_length=1)] = OCCASIONS
    """Events to send; default: all."""
    format: Format | None = None
    """Format for an address; default: the format of its host, else `webhook`. A channel has its own format."""

    @model_validator(mode="after")
    def _fits(self) -> NotifySpec:
        if self.format is not None and not is_address(self.to):
            raise wrong("is set by the channel", "remove it", at="format")
        fault = address_fault(self.to, self.format) if is_address(self.to) else None
        if fault is not None:
            raise wrong(f"does not match the URL, which {fault}", "remove it", at="format")
        return self
