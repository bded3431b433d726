"""The keys of the Redis link, and what lies under each. Every name starts with `TUNEFLEET_REDIS_PREFIX`.

    {topic}.events            stream   worker → server: exchanges; and what befell tasks, for whoever watches
    workers.events            stream   worker → server: registrations; and what befell workers
    {topic}:{worker_id}       stream   server → worker: dispatches and answers
    worker:{id}:commands      stream   server → worker: commands and desired states
    workers:ids               set      workers that are there
    worker:{id}               hash     what a worker is; the `cache_…` fields are the server's
    worker:{id}:hb            string   time of the last heartbeat; expires, and then the worker is stale
    workers:elastic_disabled  set      workers that elastic scaling keeps out of the pool
    tunefleet:epoch           string   made by the server with the groups; gone means that Redis was emptied
    tunefleet:server:{name}   string   a living server; expires
    tunefleet:store:{topic}   string   the store that the living servers serve; expires

A message of the link is deleted when it is dealt with; what only tells something stays until its stream is trimmed.
Truth is in the server's store: all of this may be lost at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from tunefleet.errors import MachineError

# A larger message goes over HTTP; its digest travels in its place.
INLINE_BYTES: Final = 48 << 10
EVENTS_KEPT: Final = 100_000
INBOX_KEPT: Final = 1_000
"""About how many entries a stream keeps that nobody reads."""
EXCHANGE: Final = "LINK_EXCHANGE"
REGISTRATION: Final = "LINK_REGISTER"
"""The entries of the event streams that the server answers; all others only tell something."""
TASK: Final = "TASK"
COMMAND: Final = "COMMAND"
DESIRED: Final = "DESIRED"
REPLY: Final = "REPLY"
CLOSE: Final = "CLOSE"
MIN_STALE_S: Final = 120
_SCHEMES: Final = frozenset({"redis", "rediss", "unix"})


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of one fleet's keys."""

    topic: str = "tasks"
    prefix: str = ""

    @property
    def group(self) -> str:
        """The consumer group of the servers: fleets with topics of their own may share `workers.events`."""
        return f"tunefleet:{self.topic}"

    @property
    def events(self) -> str:
        """What workers say of tasks."""
        return f"{self.prefix}{self.topic}.events"

    @property
    def worker_events(self) -> str:
        """What workers say of themselves."""
        return f"{self.prefix}workers.events"

    @property
    def ids(self) -> str:
        """Workers that are there."""
        return f"{self.prefix}workers:ids"

    @property
    def elastic_disabled(self) -> str:
        """Workers that elastic scaling keeps out of the pool."""
        return f"{self.prefix}workers:elastic_disabled"

    @property
    def epoch(self) -> str:
        """Gone when Redis was emptied."""
        return f"{self.prefix}tunefleet:epoch"

    def server(self, name: str) -> str:
        """A living server."""
        return f"{self.prefix}tunefleet:server:{name}"

    @property
    def store(self) -> str:
        """The store whose servers serve this topic."""
        return f"{self.prefix}tunefleet:store:{self.topic}"

    def inbox(self, worker_id: str) -> str:
        """Dispatches and answers for a worker."""
        return f"{self.prefix}{self.topic}:{worker_id}"

    def commands(self, worker_id: str) -> str:
        """Commands and desired states for a worker."""
        return f"{self.prefix}worker:{worker_id}:commands"

    def worker(self, worker_id: str) -> str:
        """What a worker is."""
        return f"{self.prefix}worker:{worker_id}"

    def heartbeat(self, worker_id: str) -> str:
        """The worker's sign of life."""
        return f"{self.prefix}worker:{worker_id}:hb"


def stale_after_s(heartbeat_interval_s: float) -> int:
    """Return how long a heartbeat is good."""
    return max(round(4 * heartbeat_interval_s), MIN_STALE_S)


def check_url(url: str) -> None:
    """Refuse what is no URL of a Redis.

    Raises:
        MachineError: If it is none; nothing of it but the scheme is shown, as a password may stand anywhere.
    """
    scheme = url.partition("://")[0] if "://" in url else "…"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _no_url(scheme, "its port is no number from 1 to 65535, or its host no name") from None
    if parts.scheme not in _SCHEMES or not (parts.hostname or parts.path):
        raise _no_url(scheme, "it names no server")
    if port == 0:
        raise _no_url(scheme, "its port is no number from 1 to 65535")
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    # An empty path is the first database. What is no number would be taken for it silently.
    database = dict(parse_qsl(parts.query, keep_blank_values=True)).get("db", path or "0")
    if not (database.isascii() and database.isdigit()):
        raise _no_url(scheme, "its database is no number")


def _no_url(scheme: str, why: str) -> MachineError:
    return MachineError(
        f"REDIS_URL={scheme}://… is no URL of a Redis: {why}.",
        hint="Write redis://host:6379/0, rediss://… with TLS, or unix:///path/of/the.sock; in a password, %2F for /, "
        "%3A for : and %40 for @.",
    )
