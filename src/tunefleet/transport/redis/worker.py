"""The Redis transport, worker's end: writes to the event streams, reads from streams of its own.

Each call has an id; a reader thread reassembles its reply from the parts. Anything lost on the way (a message, a
connection, all of Redis) ends the call as unreachable, and the worker sends it again.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

from pydantic import ValidationError
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Offer, RegisterReply, RegisterRequest
from tunefleet.spec.base import is_url
from tunefleet.transport.base import WorkerLink
from tunefleet.transport.redis.chunking import Entry, now_text, raised, reply_of
from tunefleet.transport.redis.errors import explained, shown
from tunefleet.transport.redis.keys import (
    EVENTS_KEPT,
    EXCHANGE,
    INLINE_BYTES,
    REGISTRATION,
    Keys,
    check_url,
    stale_after_s,
)
from tunefleet.transport.redis.large_payloads import BulkClient
from tunefleet.transport.redis.reader import Call, Reader, end_earlier
from tunefleet.transport.redis.worker_guide_events import GuideEventLog, GuideEvents

logger = logging.getLogger(__name__)

_SLACK_S: Final = 15.0
_PARTS_S: Final = 1.0
"""How long a reply waits for missing parts, which Redis may have lost."""
_CONNECT_S: Final = 5.0
_MAX_UNSENT: Final = 1_000


def connect(url: str, *, read_s: float) -> Redis:
    """Return a client without retries: the caller decides when to retry.

    Raises:
        MachineError: If the URL is invalid.
    """
    check_url(url)
    return Redis.from_url(
        url,
        decode_responses=True,
        encoding_errors="replace",
        protocol=2,
        socket_timeout=read_s,
        socket_connect_timeout=_CONNECT_S,
        retry=Retry(NoBackoff(), 0),
    )


def server_url(url: str, keys: Keys) -> str | None:
    """Return the HTTP address of a fleet's server, as published in Redis; `None` if no server publishes one.

    Raises:
        MachineError: If the URL is invalid, or the login is rejected.
        UnreachableError: If Redis does not respond.
    """
    client: Any = connect(url, read_s=_CONNECT_S)
    try:
        claim = json.loads(client.get(keys.store) or "{}")
    except (RedisError, OSError, ValueError) as error:
        raise explained(error, url, "GET", first=True) from error
    finally:
        client.close()
    found = claim.get("url") if isinstance(claim, dict) else None
    return found if isinstance(found, str) and is_url(found) else None


class RedisLink(WorkerLink):
    """Connects to the server through Redis; needs no key."""

    def __init__(
        self,
        url: str,
        keys: Keys,
        *,
        server_url: str,
        heartbeat_interval_s: float = 30.0,
        held: Iterable[Offer] = (),
    ) -> None:
        self._url = url
        self._keys = keys
        self._redis: Any = connect(url, read_s=_SLACK_S)
        self._bulk = BulkClient(server_url)
        self._events = GuideEventLog(held)
        self._events_lock = threading.Lock()
        self._stale_s = stale_after_s(heartbeat_interval_s)
        self._slack_s = _SLACK_S
        self._reader: Reader | None = None
        self._unsent: deque[tuple[str, Entry]] = deque(maxlen=_MAX_UNSENT)
        self._unsent_fields: Entry = {}
        self._greeted = False
        self._closed = threading.Event()

    def register(self, request: RegisterRequest) -> RegisterReply:
        """Register the worker and what it holds; starts a session."""
        with self._events_lock:
            guide_events = self._events.registers(request.worker_id, request.capabilities)
        if not self._greeted:
            guide_events.fields, guide_events.beats = (
                {},
                False,
            )  # the id may belong to another worker: do not write its hash yet
        body = request.model_dump_json(exclude_defaults=True)
        frame = {"type": REGISTRATION, "topic": self._keys.topic, "body": body}
        call = self._call(request.worker_id, request.session, frame, guide_events, wait_s=0.0)
        reply = RegisterReply.model_validate_json(_body(call))
        if not self._greeted:
            self._greeted = True
            with self._events_lock:
                own = self._events.registers(request.worker_id, request.capabilities)
            self._write(request.worker_id, [], GuideEvents(fields=own.fields, beats=True))
            self._end_earlier(request.worker_id, request.session)
        # A lost message goes unnoticed: wait for less time than makes the worker count as lost.
        self._slack_s = min(_SLACK_S, max(1.0, reply.lost_after_s / 3))
        return reply

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Report news and wait up to `request.wait_s` for the server's messages."""
        with self._events_lock:
            guide_events = self._events.exchanges(request)
        frame = {"type": EXCHANGE} | self._packed(request)
        call = self._call(request.worker_id, request.session, frame, guide_events, wait_s=request.wait_s)
        body = _body(call)
        offers = tuple(self._bulk.offer(entry) for entry in call.offers)
        with self._events_lock:
            for entry, offer in zip(call.offers, offers, strict=True):
                self._events.note(offer, entry.get("dispatched_at"))
        return reply_of(body, offers, call.wishes)

    def close(self) -> None:
        """Close the connections; reports that the worker leaves, if Redis responds."""
        if self._closed.is_set():
            return
        self._closed.set()
        reader = self._reader
        if reader is not None:
            reader.close()
            if self._greeted:
                self._leave(reader.worker_id)
        self._redis.close()
        self._bulk.close()

    def _end_earlier(self, worker_id: str, session: str) -> None:
        try:
            end_earlier(self._redis, (self._keys.inbox(worker_id), self._keys.commands(worker_id)), session)
        except (RedisError, OSError) as error:
            logger.debug("Could not delete groups of earlier sessions: %s", error)

    def _leave(self, worker_id: str) -> None:
        keys = self._keys
        commands = self._redis.pipeline(transaction=False)
        with self._events_lock:
            event = self._events.leaves(worker_id)
        _add(commands, keys.worker_events, event)
        commands.execute_command("SREM", keys.ids, worker_id)
        commands.execute_command("DEL", keys.heartbeat(worker_id))
        commands.execute_command("HSET", keys.worker(worker_id), "status", "OFFLINE")
        try:
            commands.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            logger.debug("Could not report to Redis that the worker leaves: %s", error)

    def _call(self, worker_id: str, session: str, frame: Entry, guide_events: GuideEvents, *, wait_s: float) -> Call:
        if self._closed.is_set():
            raise UnreachableError("The connection is closed.")
        call = Call(uuid.uuid4().hex)
        patience_s = wait_s + self._slack_s
        head = {"worker_id": worker_id, "ts": now_text(), "id": call.id, "session": session}
        entry = {**head, **frame, "patience_s": f"{patience_s:.1f}"}
        stream = self._keys.worker_events if frame["type"] == REGISTRATION else self._keys.events
        with self._listening(worker_id, session).waiting(call):
            self._write(worker_id, [(stream, entry)], guide_events)
            if not call.replied.wait(patience_s):
                raise UnreachableError(f"The server does not respond over Redis at {shown(self._url)}.")
            call.whole.wait(_PARTS_S)
        if call.error is not None:
            raise call.error
        return call

    def _listening(self, worker_id: str, session: str) -> Reader:
        if self._reader is None or (self._reader.worker_id, self._reader.session) != (worker_id, session):
            if self._reader is not None:
                self._reader.close()
            self._reader = Reader(self._url, self._keys, worker_id, session, first=lambda: not self._greeted)
            self._reader.start()
        return self._reader

    def _packed(self, request: ExchangeRequest) -> Entry:
        body = request.model_dump_json(exclude_defaults=True)
        if len(body) > INLINE_BYTES:
            tokens = (*(finish.token for finish in request.finishes), *request.holding, *request.accepts)
            digest = self._bulk.put(body.encode(), tokens)
            if digest is not None:
                return {"digest": digest}
        return {"body": body}

    def _write(self, worker_id: str, frames: list[tuple[str, Entry]], guide_events: GuideEvents) -> None:
        """Write entries and presence in one round trip.

        Raises:
            UnreachableError: If Redis fails; the events are kept for the next call.
            MachineError: If the very first call is refused: the login or a permission is missing.
        """
        keys, commands = self._keys, self._redis.pipeline(transaction=False)
        entries, fields = self._drain()
        fields |= guide_events.fields
        entries += [(keys.events, entry) for entry in guide_events.tasks]
        entries += [(keys.worker_events, entry) for entry in guide_events.workers]
        doing = []
        for stream, entry in (*frames, *entries):
            _add(commands, stream, entry)
            doing.append(f"XADD {stream}")
        if fields:
            commands.hset(keys.worker(worker_id), mapping=dict(fields))
            doing.append(f"HSET {keys.worker(worker_id)}")
        if guide_events.beats and self._greeted:
            commands.execute_command("SADD", keys.ids, worker_id)
            commands.execute_command("SETEX", keys.heartbeat(worker_id), self._stale_s, now_text())
            doing += [f"SADD {keys.ids}", f"SETEX {keys.heartbeat(worker_id)}"]
        try:
            self._execute(commands, doing)
        except TunefleetError:
            with self._events_lock:
                self._unsent.extend(entries)
                self._unsent_fields = fields | self._unsent_fields
            raise

    def _execute(self, commands: Any, doing: list[str]) -> None:
        try:
            results = commands.execute(raise_on_error=False)
        except (RedisError, OSError, RuntimeError, ValueError) as error:  # RuntimeError and ValueError: closed client
            raise explained(error, self._url, doing[0], first=not self._greeted) from error
        for result, what in zip(results, doing, strict=True):
            if isinstance(result, Exception):
                raise explained(result, self._url, what, first=not self._greeted) from result

    def _drain(self) -> tuple[list[tuple[str, Entry]], Entry]:
        """Return the events that could not be sent the last time."""
        with self._events_lock:
            entries, fields = list(self._unsent), self._unsent_fields
            self._unsent.clear()
            self._unsent_fields = {}
        return entries, fields


def _add(commands: Any, stream: str, entry: Entry) -> None:
    flat = [part for pair in entry.items() for part in pair]
    commands.execute_command("XADD", stream, "MAXLEN", "~", EVENTS_KEPT, "*", *flat)


def _body(call: Call) -> str:
    reply = call.reply or {}
    if "error" in reply:
        raise raised(reply["error"])
    try:
        return reply["body"]
    except (KeyError, ValidationError) as error:
        raise UnreachableError(
            "The reply over Redis is not from a Tunefleet server of a compatible version."
        ) from error
