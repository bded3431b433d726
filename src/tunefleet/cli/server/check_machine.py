"""The checks of `tunefleet doctor` for the machine (folder, proxy, TLS, Redis, clock …) and the artifact store."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import Final, Literal

from tunefleet.artifacts import BlobStore, disk_free
from tunefleet.certificate import load_certificate
from tunefleet.cli import formatting
from tunefleet.cli.options import chosen_url
from tunefleet.client import Client
from tunefleet.client.connection import ahead_s
from tunefleet.client.trust import proxy_of
from tunefleet.errors import ArtifactError, MachineError, TunefleetError
from tunefleet.schemas.base import Message
from tunefleet.settings import ProcessSettings, RedisSettings, ServerSettings, TlsSettings, load

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- only read
# A container gets 64 MiB by default, which the worker processes of a DataLoader soon fill.
_LEAST_SHARED: Final = 512 << 20
_SKEW_S: Final = 5.0
# Renewal usually starts earlier: a certificate with less time left was not renewed.
_SOON_S: Final = 14 * 86_400.0


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
                "A file that was just written came back with different content.", hint="Check the disk or bucket."
            )
    finally:
        blobs.delete(digest)
    if blobs.has(digest):
        raise MachineError(
            "A file that was just written cannot be removed.",
            hint="Allow the server's key or user to delete files; otherwise, unused files accumulate and cost money.",
        )


def home() -> Finding:
    """Check that the folder of keys, jobs and settings can be written."""
    folder = load(ProcessSettings).home_dir
    # The folder may not exist yet: then its nearest existing parent decides.
    above = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        text = f"{above} is not writable ({error.strerror}); {folder} must be created there"
        return bad("Home", text, f"chown or chmod {above}, or set TUNEFLEET_HOME.")
    return good("Home", f"{folder}" if above == folder else f"{folder} is created on first use")


def shared_memory() -> Finding | None:
    """Check the shared memory of a run's processes; None where the system has no such folder."""
    if not SHARED_MEMORY.is_dir():
        return None
    size = os.statvfs(SHARED_MEMORY)
    total, free = size.f_frsize * size.f_blocks, disk_free(SHARED_MEMORY)
    found = f"{formatting.size(free)} free of {formatting.size(total)} at {SHARED_MEMORY}"
    if free >= _LEAST_SHARED:
        return good("Shared memory", found)
    if total < _LEAST_SHARED:
        return warning(
            "Shared memory", found, "Give the container more shared memory, such as `docker run --shm-size 2g`."
        )
    return warning("Shared memory", found, f"Remove files of ended processes from {SHARED_MEMORY}.")


def proxy() -> Finding | None:
    """Report the proxy between this machine and the chosen server; None if there is none."""
    try:
        with Client(chosen_url.get(), patience_s=0.0) as client:
            url = client.url
    except TunefleetError:
        return None  # the server check reports the error
    through = proxy_of(url)
    if through is None:
        return None
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0] or url
    text = f"requests to {url} go through {through}"
    return warning("Proxy", text, f"If the proxy blocks them, add {host} to NO_PROXY.")


def redis() -> Finding | None:
    """Check that the configured Redis answers; None if none is configured."""
    settings = load(RedisSettings)
    if settings.redis_url is None:
        return None
    from tunefleet.transport.redis.connection import ping

    try:
        return good("Redis", ping(settings))
    except TunefleetError as error:
        return bad("Redis", error.message, error.hint or "Start it, or fix TUNEFLEET_REDIS_URL.")


def certificate() -> Finding | None:
    """Check the TLS certificate of a server or agent here; None if it would serve plain HTTP."""
    settings = load(TlsSettings)
    try:
        found = load_certificate(settings.tls_cert_file, settings.tls_key_file)
    except MachineError as error:
        return bad("Certificate", error.message, error.hint or "Fix TUNEFLEET_TLS_CERT_FILE.")
    if found is None:
        return None
    facts, text = found.facts, f"{settings.tls_cert_file}, for {', '.join(found.facts.names) or 'no name'}"
    if facts.fault is not None:
        return bad("Certificate", f"{text}: rejected by clients ({facts.fault})", "Renew it, or set the clock.")
    if facts.expires_at is None:
        return good("Certificate", text)
    left = facts.expires_at - time.time()
    text = f"{text}, valid for {formatting.duration(left)}"
    if left < _SOON_S:
        return warning("Certificate", text, "Renew it; a running server reloads it automatically.")
    return good("Certificate", text)


def clock() -> Finding | None:
    """Compare the clocks of this machine and the chosen server; None if no server answers."""
    try:
        with Client(chosen_url.get(), patience_s=0.0) as client:
            url = client.url
    except TunefleetError:
        return None
    ahead = ahead_s(url)
    if ahead is None:
        return None
    if abs(ahead) < _SKEW_S:
        return good("Clock", "in sync with the server")
    side = "ahead of" if ahead > 0 else "behind"
    text = f"this machine is {formatting.duration(abs(ahead))} {side} {url}: times in logs and metrics are off"
    return warning("Clock", text, "Synchronize both clocks, for example with NTP (`timedatectl set-ntp true`).")
