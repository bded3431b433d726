"""Messages that are too large for their transport: files by digest, kept while the attempt is open."""

from __future__ import annotations

import asyncio
import hashlib

from tunefleet.artifacts import BlobStore, is_digest
from tunefleet.errors import NotFoundError, TooLargeError
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.storage import artifacts


async def keep(core: ServerContext, body: bytes, token: str) -> str:
    """Store a message of an attempt, and return its digest.

    Raises:
        AuthError: If the attempt is void.
    """
    attempt = await api_keys.authenticate_attempt(core, token)
    digest = hashlib.sha256(body).hexdigest()
    await asyncio.to_thread(_write, core.blobs, digest, body)
    await artifacts.stored(core, attempt, digest, len(body))
    return digest


async def fetch(core: ServerContext, digest: str) -> bytes:
    """Return a stored message.

    Raises:
        NotFoundError: If there is none with this digest.
        TooLargeError: If it exceeds the maximum body size.
    """
    return await asyncio.to_thread(_read, core.blobs, digest, core.settings.max_body_bytes)


def _read(blobs: BlobStore, digest: str, max_bytes: int) -> bytes:
    size = blobs.find(digest) if is_digest(digest) else None
    if size is None:
        raise NotFoundError(f"There is no message {digest[:64]}.")
    if size > max_bytes:
        raise TooLargeError(f"The message has {size:,} bytes; the limit is {max_bytes:,}.")
    return blobs.read(digest)


def _write(blobs: BlobStore, digest: str, body: bytes) -> None:
    if blobs.has(digest):
        return
    with blobs.append(digest, blobs.partial_size(digest), len(body)) as upload:
        upload.write(body[upload.offset :])
        upload.finish()
