"""What is too large for Redis, worker's end: goes over HTTP by digest, with the token of an attempt as its key."""

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
    """Puts and fetches messages at a server."""

    def __init__(self, url: str) -> None:
        self._url = normalise(url)
        self._client = httpx.Client(
            base_url=f"{self._url}/api/v1/blobs",
            timeout=_TIMEOUT_S,
            **trust.options(self._url),
        )

    def close(self) -> None:
        """Give up connections."""
        self._client.close()

    def put(self, body: bytes, tokens: Iterable[str]) -> str | None:
        """Store a message at the server.

        Returns:
            Its digest; null if none of the tokens is good: it has to travel as it is.

        Raises:
            UnreachableError: If the server does not answer over HTTP.
        """
        digest = hashlib.sha256(body).hexdigest()
        for token in list(dict.fromkeys(tokens))[:_TRIES]:
            headers = {"Upload-Offset": "0", "Upload-Length": str(len(body))}
            answer = self._send("PUT", digest, token, headers=headers, content=body)
            if answer.is_success:
                return digest
            if answer.status_code not in {401, 403}:
                raise _unreachable(answer)
        return None

    def offer(self, entry: Entry) -> Offer:
        """Read a dispatch; fetch it if only its digest is here.

        Raises:
            UnreachableError: If the server does not answer over HTTP.
        """
        if "digest" not in entry:
            return offer_of(entry)
        answer = self._send("GET", entry["digest"], entry["token"])
        if not answer.is_success:
            raise _unreachable(answer)
        if hashlib.sha256(answer.content).hexdigest() != entry["digest"]:
            raise UnreachableError(f"The task {entry['task_id']} does not arrive whole from {self._url}.")
        return readable(orjson.loads(answer.content))

    def _send(
        self, method: str, digest: str, token: str, *, headers: dict[str, str] | None = None, content: bytes = b""
    ) -> httpx.Response:
        own = {"Authorization": f"Bearer {token}", **(headers or {})}
        try:
            # Where the server keeps its files in S3 it answers with a link there; httpx sends no key to another host.
            return self._client.request(method, f"/{digest}", headers=own, content=content, follow_redirects=True)
        except (httpx.HTTPError, RuntimeError) as error:
            raise trust.explained(self._url, error) or UnreachableError(
                f"The server at {self._url} does not answer, and a message is too large for Redis.",
                hint="Let ORCHESTRATOR_BASE_URL name the server as this machine reaches it.",
                detail=repr(error),
            ) from error


def _unreachable(answer: httpx.Response) -> UnreachableError:
    told = exception_of(answer, answer.content)
    return UnreachableError(f"A large message cannot be passed on: {told.message}", hint=told.hint)
