"""The check of `tunefleet doctor` for the artifact store."""

from __future__ import annotations

import hashlib
import logging
import secrets
import tempfile
from pathlib import Path
from typing import Literal

from tunefleet.artifacts import BlobStore
from tunefleet.errors import ArtifactError, MachineError, TunefleetError
from tunefleet.schemas.base import Message
from tunefleet.settings import ServerSettings, load


def artifact_store() -> Finding:
    """Check that a file can be written, read and removed in the configured store; leaves nothing there."""
    from tunefleet.orchestrator.storage.blob_stores import kind, open_blobs

    settings = load(ServerSettings)
    name, folder = settings.artifacts or str(settings.data_dir / "artifacts"), settings.data_dir / "artifacts"
    if settings.artifacts is None and not folder.exists():
        return good("Artifact store", f"{folder} is created at the first start")
    # A failed removal is reported once, as a finding, and not in the log too.
    log = logging.getLogger("tunefleet.artifacts")
    level, log.disabled = log.disabled, True
    try:
        with tempfile.TemporaryDirectory(prefix="tunefleet-doctor-") as scratch:
            # A remote store buffers uploads locally: not in the data folder of a server that may run.
            overrides = {} if settings.artifacts is None else {"data": Path(scratch)}
            blobs = open_blobs(settings.model_copy(update=overrides))
            try:
                prove(blobs)
            finally:
                blobs.close()
    except (TunefleetError, OSError) as error:
        hint = error.hint if isinstance(error, TunefleetError) else None
        return bad("Artifact store", f"{name}: {error}", hint or "Check TUNEFLEET_ARTIFACTS, its keys and the network.")
    finally:
        log.disabled = level
    return good("Artifact store", f"{name} ({kind(settings)}): a file was written, read and removed")


State = Literal["good", "warning", "bad"]


class Finding(Message):
    """The result of a check."""

    name: str
    state: State
    found: str
    mend: str | None = None


def good(name: str, found: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(name=name, state="good", found=found)


def warning(name: str, found: str, fix: str) -> Finding:
    """Return a finding that does not stop Tunefleet."""
    return Finding(name=name, state="warning", found=found, mend=fix)


def bad(name: str, found: str, fix: str) -> Finding:
    """Return a finding that stops Tunefleet."""
    return Finding(name=name, state="bad", found=found, mend=fix)


def prove(blobs: BlobStore) -> None:
    """Write, read and remove a small file under a unique digest; blocks.

    Raises:
        MachineError: If one of the three fails, or the content differs.
        NotFoundError: If the file just written is missing.
        UnreachableError: If the store does not respond.
    """
    # A running server writes to the same store.
    blobs.others_write = True
    body = f"tunefleet doctor {secrets.token_hex(16)}\n".encode()
    digest = hashlib.sha256(body).hexdigest()
    with blobs.append(digest, 0, len(body)) as upload:
        upload.write(body)
        upload.finish()
    try:
        if hashlib.sha256(blobs.read(digest)).hexdigest() != digest:
            raise ArtifactError(
                "A file that was just written is read with different content.", hint="Check the disk or bucket."
            )
    finally:
        blobs.delete(digest)
    if blobs.has(digest):
        raise MachineError(
            "A file that was just written cannot be removed.",
            hint="Allow the server's key or user to delete: otherwise unused files stay and cost money.",
        )
