"""Links to files of tasks that need no key: signed over what they lead to, and good for a while."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.ids import seal

PREFIX: Final = "/api/v1/results"


@dataclass(frozen=True, slots=True)
class Signature:
    """What stands in the query of a link."""

    expires: int
    signature: str


def path_of(task_id: str, name: str | None = None) -> str:
    """Return where a task's result, or one of its files, is below the server's address."""
    return f"{PREFIX}/{task_id}" + ("" if name is None else f"/files/{quote(name)}")


def base_of(link: Any, task_id: str) -> str | None:
    """Return the address of the server in a link to a file of a task; null if it is none."""
    base, found, _ = str(link).partition(f"{path_of(task_id)}/files/")
    return base if found else None


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes links of one server, as one asker knows it.

    Args:
        expires: Unix time at which the links end, in whole seconds.
    """

    secret: bytes
    base: str
    expires: int

    def link(self, task_id: str, name: str, digest: str) -> str:
        """Return a link to a file; it is void as soon as the name stands for other bytes."""
        path = path_of(task_id, name)
        return f"{self.base}{path}?expires={self.expires}&signature={_mac(self.secret, path, digest, self.expires)}"


def verify(secret: bytes, task_id: str, name: str, digest: str, given: Signature, now: float) -> None:
    """Check a link.

    Raises:
        ForbiddenError: If it has expired, was not made by this server, or its file has been replaced.
    """
    wanted = _mac(secret, path_of(task_id, name), digest, given.expires)
    if not hmac.compare_digest(wanted.encode(), given.signature.encode()):
        raise ForbiddenError(f"The link to {name} is not one of this server, or its file has been replaced.")
    if given.expires < now:
        raise ForbiddenError(
            f"The link to {name} has expired.", hint=f"GET {PREFIX}/{task_id}/files lists the files with fresh ones."
        )


def renewed(value: Any, task_id: str, link: Callable[[str], str | None]) -> Any:
    """Return a result whose links to files of its task are good again.

    Args:
        link: A file's name → a link to it; None if there is no such file.
    """
    if isinstance(value, dict):
        return {key: renewed(inner, task_id, link) for key, inner in value.items()}
    if isinstance(value, list):
        return [renewed(inner, task_id, link) for inner in value]
    name = _named_by(value, task_id) if isinstance(value, str) and "signature=" in value else None
    return value if name is None else link(name) or value


def _named_by(text: str, task_id: str) -> str | None:
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    before, found, name = unquote(parts.path).partition(f"{PREFIX}/{task_id}/files/")
    signed = {"expires", "signature"} <= parse_qs(parts.query).keys()
    return name if found and signed and parts.scheme in {"http", "https"} and "?" not in before else None


def _mac(secret: bytes, path: str, digest: str, expires: int) -> str:
    return seal(secret, "link", "GET", path, digest, str(expires))
