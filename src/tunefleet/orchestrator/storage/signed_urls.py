"""Signed URLs: links to files of tasks that need no key and expire."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.ids import sign

PREFIX: Final = "/api/v1/results"


@dataclass(frozen=True, slots=True)
class Signature:
    """The query parameters of a signed URL."""

    expires: int
    signature: str


def path_of(task_id: str, name: str | None = None) -> str:
    """Return the URL path of a task's result, or of one of its files."""
    return f"{PREFIX}/{task_id}" + ("" if name is None else f"/files/{quote(name)}")


def base_of(link: Any, task_id: str) -> str | None:
    """Return the server's base URL from a link to a file of a task; None if it is not such a link."""
    base, found, _ = str(link).partition(f"{path_of(task_id)}/files/")
    return base if found else None


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs URLs of one server.

    Args:
        base: Base URL of the server, as the caller reaches it.
        expires: Expiry of the URLs, as Unix time in whole seconds.
    """

    secret: bytes
    base: str
    expires: int

    def link(self, task_id: str, name: str, digest: str) -> str:
        """Return a signed URL of a file; it becomes invalid when the file is replaced."""
        path = path_of(task_id, name)
        return f"{self.base}{path}?expires={self.expires}&signature={_mac(self.secret, path, digest, self.expires)}"


def verify(secret: bytes, task_id: str, name: str, digest: str, signature: Signature, now: float) -> None:
    """Verify a signed URL.

    Raises:
        ForbiddenError: If it has expired, was not signed by this server, or its file was replaced.
    """
    expected = _mac(secret, path_of(task_id, name), digest, signature.expires)
    if not hmac.compare_digest(expected.encode(), signature.signature.encode()):
        raise ForbiddenError(f"The link to {name} was not signed by this server, or its file was replaced.")
    if signature.expires < now:
        raise ForbiddenError(
            f"The link to {name} has expired.", hint=f"Get new links from GET {PREFIX}/{task_id}/files."
        )


def renewed(value: Any, task_id: str, link: Callable[[str], str | None]) -> Any:
    """Return a result with fresh signed URLs to the files of its task.

    Args:
        link: File name → a signed URL; None if there is no such file.
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
    return sign(secret, "link", "GET", path, digest, str(expires))
