"""Messages that are too large for Redis, worker's end: sent over HTTP by digest, with an attempt's token."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Final

import httpx
import orjson

from tunefleet.client import trust
from tunefleet.client.connection import normalise
from tunefleet.client.problems import exception_of
from tunefleet.errors import UnreachableError
from tunefleet.schemas.worker_link import Offer, readable
from tunefleet.transport.redis.chunking import Entry, offer_of

logger = logging.getLogger(__name__)

_TIMEOUT_S: Final = 30.0
_TRIES: Final = 3


class BulkClient:
    """Uploads and downloads messages at a server."""

    def __init__(self, url: str) -> None:
        self._url = normalise(url)
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v1/blobs",
            timeout=_TIMEOUT_S,
            **trust.options(self._url),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def put(self, body: bytes, tokens: Iterable[str]) -> str | None:
        """Upload a message to the server.

        Returns:
            Its digest; `None` if no token is valid: the message must be sent inline.

        Raises:
            UnreachableError: If the server does not respond over HTTP.
        """
        digest = hashlib.sha256(body).hexdigest()
        # Any valid token of this worker will do, but the first may belong to an attempt that has just ended.
        for token in list(dict.fromkeys(tokens))[:_TRIES]:
            headers = {"Upload-Offset": "0", "Upload-Length": str(len(body))}
            answer = self._send("PUT", digest, token, headers=headers, content=body)
            if answer.is_success:
                return digest
            if answer.status_code not in {401, 403}:
                raise _unreachable(answer)
        return None

    def offer(self, entry: Entry) -> Offer:
        """Parse a dispatch; download it if it contains only a digest.

        Raises:
            UnreachableError: If the server does not respond over HTTP.
        """
        if "digest" not in entry:
            return offer_of(entry)
        answer = self._send("GET", entry["digest"], entry["token"])
        if not answer.is_success:
            raise _unreachable(answer)
        if hashlib.sha256(answer.content).hexdigest() != entry["digest"]:
            raise UnreachableError(f"Task {entry['task_id']} was corrupted in transfer from {self._url}.")
        return readable(orjson.loads(answer.content))

    def _send(
        self, method: str, digest: str, token: str, *, headers: dict[str, str] | None = None, content: bytes = b""
    ) -> httpx.Response:
        own = {"Authorization": f"Bearer {token}", **(headers or {})}
        try:
            # A server with an object store redirects to a link there; httpx sends no key to another host.
            return self._client.request(method, f"/{digest}", headers=own, content=content, follow_redirects=True)
        except (httpx.HTTPError, RuntimeError) as error:
            raise trust.explained(self._url, error) or UnreachableError(
                f"The server at {self._url} does not respond, and a message is too large for Redis.",
                hint="Set TUNEFLEET_SERVER_URL to a URL of the server that this machine can reach.",
                detail=repr(error),
            ) from error


def _unreachable(answer: httpx.Response) -> UnreachableError:
    error = exception_of(answer, answer.content)
    return UnreachableError(f"Cannot transfer a large message: {error.message}", hint=error.hint)
