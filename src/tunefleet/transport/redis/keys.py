"""The keys of the Redis transport and their content. Every name starts with `TUNEFLEET_REDIS_PREFIX`.

    {topic}.events            stream   worker → server: exchanges; task events for monitoring
    workers.events            stream   worker → server: registrations; worker events for monitoring
    {topic}:{worker_id}       stream   server → worker: dispatches and replies
    worker:{id}:commands      stream   server → worker: commands and desired states
    workers:ids               set      online workers
    worker:{id}               hash     description of a worker; the server writes the `cache_…` fields
    worker:{id}:hb            string   time of the last heartbeat; expires, and then the worker is stale
    workers:elastic_disabled  set      workers that elastic scaling keeps on standby
    tunefleet:epoch           string   created with the groups; missing means that Redis was emptied
    tunefleet:server:{name}   string   a live server; expires
    tunefleet:store:{topic}   string   the database that the live servers serve; expires

A message of the transport is deleted once it is processed; events for monitoring stay until their stream is trimmed.
The server's database is the source of truth: all of this may be lost at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from tunefleet.errors import MachineError

# Larger messages are sent over HTTP, and only their digest over Redis.
INLINE_BYTES: Final = 48 << 10
EVENTS_KEPT: Final = 100_000
INBOX_KEPT: Final = 1_000
"""Approximate maximum length of a stream without readers."""
EXCHANGE: Final = "LINK_EXCHANGE"
REGISTRATION: Final = "LINK_REGISTER"
"""Entry types of the event streams that the server replies to; all others are only for monitoring."""
TASK: Final = "TASK"
COMMAND: Final = "COMMAND"
DESIRED: Final = "DESIRED"
REPLY: Final = "REPLY"
CLOSE: Final = "CLOSE"
MIN_STALE_S: Final = 120
_SCHEMES: Final = frozenset({"redis", "rediss", "unix"})


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one fleet."""

    topic: str = "tasks"
    prefix: str = ""

    @property
    def group(self) -> str:
        """Consumer group of the servers; it contains the topic because fleets may share `workers.events`."""
        return f"tunefleet:{self.topic}"

    @property
    def events(self) -> str:
        """Task events of workers."""
        return f"{self.prefix}{self.topic}.events"

    @property
    def worker_events(self) -> str:
        """Worker events."""
        return f"{self.prefix}workers.events"

    @property
    def ids(self) -> str:
        """Online workers."""
        return f"{self.prefix}workers:ids"

    @property
    def elastic_disabled(self) -> str:
        """Workers that elastic scaling keeps on standby."""
        return f"{self.prefix}workers:elastic_disabled"

    @property
    def epoch(self) -> str:
        """Missing if Redis was emptied."""
        return f"{self.prefix}tunefleet:epoch"

    def server(self, name: str) -> str:
        """A live server."""
        return f"{self.prefix}tunefleet:server:{name}"

    @property
    def store(self) -> str:
        """The database whose servers serve this topic."""
        return f"{self.prefix}tunefleet:store:{self.topic}"

    def inbox(self, worker_id: str) -> str:
        """Dispatches and replies for a worker."""
        return f"{self.prefix}{self.topic}:{worker_id}"

    def commands(self, worker_id: str) -> str:
        """Commands and desired states for a worker."""
        return f"{self.prefix}worker:{worker_id}:commands"

    def worker(self, worker_id: str) -> str:
        """Description of a worker."""
        return f"{self.prefix}worker:{worker_id}"

    def heartbeat(self, worker_id: str) -> str:
        """The worker's sign of life."""
        return f"{self.prefix}worker:{worker_id}:hb"


def stale_after_s(heartbeat_interval_s: float) -> int:
    """Return the lifetime of a heartbeat."""
    return max(round(4 * heartbeat_interval_s), MIN_STALE_S)


def check_url(url: str) -> None:
    """Check a Redis URL.

    Raises:
        MachineError: If it is invalid; the message contains only the scheme, because a password may be anywhere.
    """
    scheme = url.partition("://")[0] if "://" in url else "…"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _no_url(scheme, "the port is not a number from 1 to 65535, or the host is invalid") from None
    if parts.scheme not in _SCHEMES or not (parts.hostname or parts.path):
        raise _no_url(scheme, "it has no host")
    if port == 0:
        raise _no_url(scheme, "the port is not a number from 1 to 65535")
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    # An empty path is database 0. redis-py would silently use 0 for anything that is not a number, too.
    database = dict(parse_qsl(parts.query, keep_blank_values=True)).get("db", path or "0")
    if not (database.isascii() and database.isdigit()):
        raise _no_url(scheme, "the database is not a number")


def _no_url(scheme: str, why: str) -> MachineError:
    return MachineError(
        f"TUNEFLEET_REDIS_URL={scheme}://… is not a valid Redis URL: {why}.",
        hint="Use redis://host:6379/0, rediss://… with TLS, or unix:///path/of/the.sock. In a password, encode "
        "/ as %2F, "
        ": as %3A and @ as %40.",
    )
