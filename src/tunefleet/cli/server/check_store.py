"""The check of `tunefleet doctor` that tries the server's store of files."""

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
    """Check that the server's files can be written, read and removed where the settings say; leaves nothing there."""
    from tunefleet.orchestrator.storage.blob_stores import kind, open_blobs

    settings = load(ServerSettings)
    name, folder = settings.artifacts or str(settings.data_dir / "artifacts"), settings.data_dir / "artifacts"
    if settings.artifacts is None and not folder.exists():
        return good("Artifact store", f"{folder} will be made at the first start")
    # Why something cannot be removed is said once, as a finding.
    log = logging.getLogger("tunefleet.artifacts")
    level, log.disabled = log.disabled, True
    try:
        with tempfile.TemporaryDirectory(prefix="tunefleet-doctor-") as here:
            # What a store elsewhere gathers before it sends it does not go into the data folder.
            away = {} if settings.artifacts is None else {"data": Path(here)}
            blobs = open_blobs(settings.model_copy(update=away))
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
    """What a check found."""

    name: str
    state: State
    found: str
    mend: str | None = None


def good(name: str, found: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(name=name, state="good", found=found)


def warning(name: str, found: str, mend: str) -> Finding:
    """Return a finding that one can live with."""
    return Finding(name=name, state="warning", found=found, mend=mend)


def bad(name: str, found: str, mend: str) -> Finding:
    """Return a finding that stops Tunefleet."""
    return Finding(name=name, state="bad", found=found, mend=mend)


def prove(blobs: BlobStore) -> None:
    """Write, read and remove a file of a few bytes under a digest that nothing else has; blocks.

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
            raise ArtifactError(
                "A file that was just written is read with another content.",
                hint="Turn off what changes files between this machine and the store, such as a cache or a proxy.",
            )
    finally:
        blobs.delete(digest)
    if blobs.has(digest):
        raise MachineError(
            "A file that was just written cannot be removed again.",
            hint="Let the server's key or user delete there: what nothing refers to stays, and is paid for.",
        )
