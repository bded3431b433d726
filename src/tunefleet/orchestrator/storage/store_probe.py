"""Prove that a store of files can be used: write a small file, read it back, remove it."""

from __future__ import annotations

import hashlib
import secrets

from tunefleet.artifacts import BlobStore
from tunefleet.errors import ArtifactError, MachineError


def prove(blobs: BlobStore) -> None:
    """Write, read and remove a file of a few bytes under a digest that nothing else has; blocks.

    Args:
        blobs: The store; it is used as one that others write to, so that nothing is remembered or put off.

    Raises:
        MachineError: If it refuses one of the three, or gives back something else than it was given.
        NotFoundError: If it does not have what was just written.
        UnreachableError: If it does not answer.
    """
    blobs.others_write = True
    body = f"tunefleet doctor {secrets.token_hex(16)}\n".encode()
    digest = hashlib.sha256(body).hexdigest()
    with blobs.append(digest, 0, len(body)) as upload:
        upload.write(body)
        upload.finish()
    try:
        if hashlib.sha256(blobs.read(digest)).hexdigest() != digest:
            raise ArtifactError("A file that was just written is read with another content.")
    finally:
        blobs.delete(digest)
    if blobs.has(digest):
        raise MachineError(
            "A file that was just written cannot be removed again.",
            hint="Let the server's key or user delete there: what nothing refers to stays, and is paid for.",
        )
