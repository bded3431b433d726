"""The checks of `tunefleet doctor` for what lies around Tunefleet: folder, shared memory, proxy, TLS, Redis, clock."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from tunefleet.artifacts import disk_free
from tunefleet.certificate import opened
from tunefleet.cli import formatting
from tunefleet.cli.options import chosen_url
from tunefleet.cli.server.check_store import Finding, bad, good, warning
from tunefleet.client import Client
from tunefleet.client.connection import ahead_s
from tunefleet.client.trust import proxy_of
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.settings import MeetingSettings, ProcessSettings, TlsSettings, load

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 -- looked at, never written
_LEAST_SHARED: Final = 512 << 20
"""A container gets 64 MiB unless it asks for more; what loads rows in processes of its own soon fills that."""
_SKEW_S: Final = 5.0
_SOON_S: Final = 14 * 86_400.0


def home() -> Finding:
    """Check that the folder of keys, jobs and settings can be written."""
    folder = load(ProcessSettings).home_dir
    above = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        told = f"{above} cannot be written ({error.strerror}), and {folder} is to be there"
        return bad("Home", told, f"chown or chmod {above}, or set TUNEFLEET_HOME.")
    return good("Home", f"{folder}" if above == folder else f"{folder} will be made at the first use")


def shared_memory() -> Finding | None:
    """Check the room that processes of one training share; None where the system has no such folder."""
    if not SHARED_MEMORY.is_dir():
        return None
    size = os.statvfs(SHARED_MEMORY)
    total, free = size.f_frsize * size.f_blocks, disk_free(SHARED_MEMORY)
    found = f"{formatting.size(free)} free of {formatting.size(total)} at {SHARED_MEMORY}"
    if free >= _LEAST_SHARED:
        return good("Shared memory", found)
    if total < _LEAST_SHARED:
        return warning("Shared memory", found, "Give the container more, such as `docker run --shm-size 2g`.")
    return warning("Shared memory", found, f"Remove what ended processes have left in {SHARED_MEMORY}.")


def proxy() -> Finding | None:
    """Say which proxy the environment puts before the chosen server; None if there is none."""
    try:
        with Client(chosen_url.get(), patience_s=0.0) as client:
            url = client.url
    except TunefleetError:
        return None  # the check of the server says what is wrong
    through = proxy_of(url)
    if through is None:
        return None
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0] or url
    told = f"the environment sends what is for {url} through {through}"
    return warning("Proxy", told, f"If it does not let you through, name {host} in NO_PROXY.")


def redis() -> Finding | None:
    """Check that the Redis which server and workers meet in answers; None if the settings name none."""
    settings = load(MeetingSettings)
    if settings.redis_url is None:
        return None
    from tunefleet.transport.redis.health import ping

    try:
        return good("Redis", ping(settings))
    except TunefleetError as error:
        return bad("Redis", error.message, error.hint or "Start it, or mend REDIS_URL.")


def certificate() -> Finding | None:
    """Check the certificate that a server or agent here would show; None if it would serve plain HTTP."""
    settings = load(TlsSettings)
    try:
        found = opened(settings.tls_cert_file, settings.tls_key_file)
    except MachineError as error:
        return bad("Certificate", error.message, error.hint or "Mend TUNEFLEET_TLS_CERT_FILE.")
    if found is None:
        return None
    facts, told = found.facts, f"{settings.tls_cert_file}, for {', '.join(found.facts.names) or 'no name'}"
    if facts.fault is not None:
        return bad("Certificate", f"{told}: every client refuses it ({facts.fault})", "Renew it, or set the clock.")
    if facts.expires_at is None:
        return good("Certificate", told)
    left = facts.expires_at - time.time()
    told = f"{told}, good for {formatting.duration(left)} more"
    if left < _SOON_S:
        return warning("Certificate", told, "Renew it; a server that runs reads it again by itself.")
    return good("Certificate", told)


def clock() -> Finding | None:
    """Compare this machine's clock with the chosen server's; None if no server answers."""
    try:
        with Client(chosen_url.get(), patience_s=0.0) as client:
            url = client.url
    except TunefleetError:
        return None
    ahead = ahead_s(url)
    if ahead is None:
        return None
    if abs(ahead) < _SKEW_S:
        return good("Clock", "as the server's")
    side = "ahead of" if ahead > 0 else "behind"
    told = (
        f"this machine is {formatting.duration(abs(ahead))} {side} {url}: times of logs and metrics are wrong by that"
    )
    return warning("Clock", told, "Set both clocks, as with NTP (`timedatectl set-ntp true`).")
