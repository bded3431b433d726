"""Reader thread of a worker: reads its streams in its session's consumer group, and delivers replies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.transport.redis.chunking import Entry
from tunefleet.transport.redis.errors import explained, is_gone_group, shown
from tunefleet.transport.redis.keys import CLOSE, INBOX_KEPT, REPLY, TASK, Keys

logger = logging.getLogger(__name__)

# Timeout of a blocking read, which is also the time until an emptied Redis is noticed.
_BLOCK_S: Final = 1.0
_READ_S: Final = 10.0
_CLOSE_S: Final = 3.0
_MAX_BACKOFF_S: Final = 2.0
_BREATH_S: Final = 0.1


@dataclass(slots=True)
class Call:
    """A call and the received parts of its reply."""

    id: str
    offers: list[Entry] = field(default_factory=list)
    wishes: list[Entry] = field(default_factory=list)
    reply: Entry | None = None
    error: TunefleetError | None = None
    replied: threading.Event = field(default_factory=threading.Event)
    whole: threading.Event = field(default_factory=threading.Event)

    def take(self, entry: Entry) -> None:
        """Add a part of the reply."""
        if entry.get("type") == REPLY:
            self.reply = entry
        else:
            (self.offers if entry.get("type") == TASK else self.wishes).append(entry)
        if self.reply is not None:
            wanted = int(self.reply.get("offers", 0)), int(self.reply.get("wishes", 0))
            if (len(self.offers), len(self.wishes)) == wanted:
                self.whole.set()
            self.replied.set()

    def fail(self, error: TunefleetError) -> None:
        """Fail the call."""
        self.error = error
        self.whole.set()
        self.replied.set()


def end_earlier(redis: Any, streams: Iterable[str], session: str) -> None:
    """Delete the groups of a worker's earlier sessions."""
    for stream in streams:
        # A killed session leaves entries that it had read and not acknowledged, which no other group ever handles.
        for group in redis.xinfo_groups(stream):
            name = group["name"]
            # A session's group has exactly one consumer with its own name; monitoring tools may have other groups.
            if name != session and [each["name"] for each in redis.xinfo_consumers(stream, name)] == [name]:
                redis.execute_command("XGROUP", "DESTROY", stream, name)


class Reader:
    """Reads the streams of one worker session in a thread."""

    def __init__(self, url: str, keys: Keys, worker_id: str, session: str, *, first: Callable[[], bool]) -> None:
        self.worker_id, self.session = worker_id, session
        self._url, self._keys, self._first = url, keys, first
        self._streams = (keys.inbox(worker_id), keys.commands(worker_id))
        # A separate connection: a blocking read would delay other commands.
        self._redis: Any = Redis.from_url(
            url, decode_responses=True, encoding_errors="replace", protocol=2,
            socket_timeout=_READ_S + _BLOCK_S,
            socket_connect_timeout=_READ_S, retry=Retry(NoBackoff(), 0),
        )  # fmt: skip
        self._calls: dict[str, Call] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redis-reader", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waiting calls fail as unreachable."""
        self._over.set()
        self._fail(UnreachableError("The connection is closed."))
        try:
            # Wakes the thread, which blocks in a read.
            self._redis.xadd(self._streams[0], {"type": CLOSE, "session": self.session}, maxlen=INBOX_KEPT)
        except (RedisError, OSError) as error:
            logger.debug("Could not wake the reader; it stops after its read timeout: %s", error)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            return  # it hangs in a read: its connection cannot be closed meanwhile, and ends with the process
        try:
            for stream in self._streams:
                self._redis.execute_command("XGROUP", "DESTROY", stream, self.session)
        except (RedisError, OSError) as error:
            logger.debug("Could not delete the group of this session: %s", error)
        self._redis.close()

    @contextmanager
    def waiting(self, call: Call) -> Iterator[None]:
        """Register a call for the parts of its reply while the body runs."""
        with self._lock:
            self._calls[call.id] = call
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(call.id, None)

    def _run(self) -> None:
        pause_s = 0.1
        while not self._over.is_set():
            try:
                self._make_groups()
                pause_s = 0.1
                while not self._over.is_set():
                    self._read()
            except (RedisError, OSError) as error:
                if self._over.is_set():
                    return
                if is_gone_group(error):
                    where = shown(self._url)
                    logger.warning("Redis at %s was emptied; the worker registers again. No data is lost.", where)
                    self._fail(UnreachableError(f"Redis at {where} was emptied."))
                    self._over.wait(_BREATH_S)
                    continue
                self._fail(explained(error, self._url, f"XREADGROUP {self._streams[0]}", first=self._first()))
                logger.debug("Cannot read from Redis: %r", error)
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, _MAX_BACKOFF_S)

    def _make_groups(self) -> None:
        for stream in self._streams:
            try:
                self._redis.execute_command("XGROUP", "CREATE", stream, self.session, "0", "MKSTREAM")
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            # Otherwise the group has no consumer before its first entry, and its owner is unknown.
            self._redis.execute_command("XGROUP", "CREATECONSUMER", stream, self.session, self.session)

    def _read(self) -> None:
        found = self._redis.execute_command(
            "XREADGROUP", "GROUP", self.session, self.session, "COUNT", 256, "BLOCK", int(_BLOCK_S * 1000),
            "STREAMS", *self._streams, ">", ">",
        )  # fmt: skip
        if not found:
            return
        done = self._redis.pipeline(transaction=False)
        for stream, entries in found:
            ids = [id_ for id_, entry in entries if self._deliver(entry)]
            done.execute_command("XACK", stream, self.session, *(id_ for id_, _ in entries))
            if ids:
                done.execute_command("XDEL", stream, *ids)
        done.execute()

    def _deliver(self, entry: Entry | None) -> bool:
        """Deliver an entry to its call; returns whether it belongs to this session and can be deleted."""
        if not entry or entry.get("session") != self.session:
            return False
        with self._lock:
            call = self._calls.get(entry.get("re", ""))
        if call is not None:
            call.take(entry)
        return True

    def _fail(self, error: TunefleetError) -> None:
        with self._lock:
            waiting = list(self._calls.values())
        for call in waiting:
            call.fail(error)
