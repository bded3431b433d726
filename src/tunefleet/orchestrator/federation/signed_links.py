"""Signed links to versions and chunks of federations: no key needed, valid until they expire."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import sign
from tunefleet.orchestrator.storage.signed_urls import Signature

TRAINING: Final = "/api/training"
_CHUNKS: Final = "/api/datasets/chunks"


def version_path(federation: str | int) -> str:
    """Return the URL path of a version's archive; the version number is a query parameter."""
    return f"{TRAINING}/checkpoints/{federation}/download"


def chunk_path(federation: str | int, number: int) -> str:
    """Return the URL path of a chunk."""
    return f"{_CHUNKS}/{federation}/{number}/download"


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs links with one server's secret, under the base URL that the caller used.

    Args:
        expires: Unix time at which the links expire, in whole seconds.
    """

    secret: bytes
    base: str
    expires: int

    def version(self, federation_id: str, shown: str | int, number: int, digest: str) -> str:
        """Return a link to the archive of a version."""
        subject = _version(federation_id, number)
        return f"{self.base}{version_path(shown)}?version={number}&{self._query(subject, digest)}"

    def chunk(self, federation_id: str, shown: str | int, number: int, digest: str) -> str:
        """Return a link to a chunk; the arguments are those of `version`."""
        return f"{self.base}{chunk_path(shown, number)}?{self._query(_chunk(federation_id, number), digest)}"

    def _query(self, subject: str, digest: str) -> str:
        return f"expires={self.expires}&signature={_mac(self.secret, subject, digest, self.expires)}"


def signer(core: ServerContext, base: str) -> Signer:
    """Return a signer for a caller that reached the server at `base`."""
    expires = int(core.clock.wall() + core.settings.links_last_s)
    return Signer(core.secret, (core.settings.public_base_url or base).rstrip("/"), expires)


def verify_version(core: ServerContext, federation_id: str, number: int, digest: str, signature: Signature) -> None:
    """Check a link to a version."""
    hint = f"GET {TRAINING}/checkpoints/{federation_id} has a fresh one."
    _verify(core, _version(federation_id, number), digest, signature, hint)


def verify_chunk(core: ServerContext, federation_id: str, number: int, digest: str, signature: Signature) -> None:
    """Check a link to a chunk."""
    hint = f"POST {TRAINING}/jobs/{federation_id}/claim-chunk has a fresh one."
    _verify(core, _chunk(federation_id, number), digest, signature, hint)


def _verify(core: ServerContext, subject: str, digest: str, signature: Signature, hint: str) -> None:
    expected = _mac(core.secret, subject, digest, signature.expires)
    if not hmac.compare_digest(expected.encode(), signature.signature.encode()):
        raise ForbiddenError("This link was not signed by this server, or its target has changed.", hint=hint)
    if signature.expires < core.clock.wall():  # after the signature: only genuine links learn that they expired
        raise ForbiddenError("This link has expired.", hint=hint)


def _version(federation_id: str, number: int) -> str:
    return f"{federation_id}/versions/{number}"


def _chunk(federation_id: str, number: int) -> str:
    return f"{federation_id}/chunks/{number}"


def _mac(secret: bytes, subject: str, digest: str, expires: int) -> str:
    return sign(secret, "federation link", subject, digest, str(expires))
