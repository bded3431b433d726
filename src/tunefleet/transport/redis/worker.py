"""The Redis link, worker's end: says over the event streams, hears over streams of its own.

Each call names itself; a reader thread puts the answer together from its parts and hands it to the call. What is lost
on the way (a message, a connection, all of Redis) ends the call as unreachable, and the worker says it again.
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
from tunefleet.transport.redis.worker_guide_events import Diary, Page

logger = logging.getLogger(__name__)

_SLACK_S: Final = 15.0
_PARTS_S: Final = 1.0
"""How long an answer waits for parts of it that Redis may have lost."""
_CONNECT_S: Final = 5.0
_MAX_UNSAID: Final = 1_000


def connect(url: str, *, read_s: float) -> Redis:
    """Return a client that fails at once: who calls it knows better when to try again.

    Raises:
        MachineError: If the URL is none of a Redis.
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
    """Return where the server of a fleet is reached by HTTP, as it says in Redis; None if no server says it now.

    Raises:
        MachineError: If the URL is none of a Redis, or the login is refused.
        UnreachableError: If Redis does not answer.
    """
    client: Any = connect(url, read_s=_CONNECT_S)
    try:
        said = json.loads(client.get(keys.store) or "{}")
    except (RedisError, OSError, ValueError) as error:
        raise explained(error, url, "GET", first=True) from error
    finally:
        client.close()
    found = said.get("url") if isinstance(said, dict) else None
    return found if isinstance(found, str) and is_url(found) else None


class RedisLink(WorkerLink):
    """Meets the server in a Redis; needs no key."""

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
        self._diary = Diary(held)
        self._diary_lock = threading.Lock()
        self._stale_s = stale_after_s(heartbeat_interval_s)
        self._slack_s = _SLACK_S
        self._reader: Reader | None = None
        self._unsaid: deque[tuple[str, Entry]] = deque(maxlen=_MAX_UNSAID)
        self._unsaid_fields: Entry = {}
        self._greeted = False
        self._closed = threading.Event()

    def register(self, request: RegisterRequest) -> RegisterReply:
        """Say who the worker is and what it holds; starts a session."""
        with self._diary_lock:
            page = self._diary.registers(request.worker_id, request.capabilities)
        if not self._greeted:
            page.fields, page.beats = {}, False  # the id may be another's: its hash is not ours to write yet
        body = request.model_dump_json(exclude_defaults=True)
        frame = {"type": REGISTRATION, "topic": self._keys.topic, "body": body}
        call = self._call(request.worker_id, request.session, frame, page, wait_s=0.0)
        reply = RegisterReply.model_validate_json(_body(call))
        if not self._greeted:
            self._greeted = True
            with self._diary_lock:
                own = self._diary.registers(request.worker_id, request.capabilities)
            self._say(request.worker_id, [], Page(fields=own.fields, beats=True))
            self._end_earlier(request.worker_id, request.session)
        # Nothing tells this link that a message is lost, so it waits less than what makes the worker lost.
        self._slack_s = min(_SLACK_S, max(1.0, reply.lost_after_s / 3))
        return reply

    def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Say what is new and wait up to `request.wait_s` for what the server wants."""
        with self._diary_lock:
            page = self._diary.exchanges(request)
        frame = {"type": EXCHANGE} | self._packed(request)
        call = self._call(request.worker_id, request.session, frame, page, wait_s=request.wait_s)
        body = _body(call)
        offers = tuple(self._bulk.offer(entry) for entry in call.offers)
        with self._diary_lock:
            for entry, offer in zip(call.offers, offers, strict=True):
                self._diary.note(offer, entry.get("dispatched_at"))
        return reply_of(body, offers, call.wishes)

    def close(self) -> None:
        """Give up connections; say that the worker leaves, if Redis listens."""
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
            logger.debug("Groups of earlier sessions stay in Redis until the next start: %s", error)

    def _leave(self, worker_id: str) -> None:
        keys = self._keys
        commands = self._redis.pipeline(transaction=False)
        with self._diary_lock:
            event = self._diary.leaves(worker_id)
        _add(commands, keys.worker_events, event)
        commands.execute_command("SREM", keys.ids, worker_id)
        commands.execute_command("DEL", keys.heartbeat(worker_id))
        commands.execute_command("HSET", keys.worker(worker_id), "status", "OFFLINE")
        try:
            commands.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            logger.debug("Redis does not hear that the worker leaves: %s", error)

    def _call(self, worker_id: str, session: str, frame: Entry, page: Page, *, wait_s: float) -> Call:
        if self._closed.is_set():
            raise UnreachableError("The link is closed.")
        call = Call(uuid.uuid4().hex)
        patience_s = wait_s + self._slack_s
        head = {"worker_id": worker_id, "ts": now_text(), "id": call.id, "session": session}
        entry = {**head, **frame, "patience_s": f"{patience_s:.1f}"}
        stream = self._keys.worker_events if frame["type"] == REGISTRATION else self._keys.events
        with self._listening(worker_id, session).waiting(call):
            self._say(worker_id, [(stream, entry)], page)
            if not call.replied.wait(patience_s):
                raise UnreachableError(f"The server does not answer over Redis at {shown(self._url)}.")
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

    def _say(self, worker_id: str, frames: list[tuple[str, Entry]], page: Page) -> None:
        """Write entries and presence in one go.

        Raises:
            UnreachableError: If Redis does not take it; what the events tell is kept for the next time.
            MachineError: If it refuses the very first time: the login or a right is missing.
        """
        keys, commands = self._keys, self._redis.pipeline(transaction=False)
        entries, fields = self._drain()
        fields |= page.fields
        entries += [(keys.events, entry) for entry in page.tasks]
        entries += [(keys.worker_events, entry) for entry in page.workers]
        doing = []
        for stream, entry in (*frames, *entries):
            _add(commands, stream, entry)
            doing.append(f"XADD {stream}")
        if fields:
            commands.hset(keys.worker(worker_id), mapping=dict(fields))
            doing.append(f"HSET {keys.worker(worker_id)}")
        if page.beats and self._greeted:
            commands.execute_command("SADD", keys.ids, worker_id)
            commands.execute_command("SETEX", keys.heartbeat(worker_id), self._stale_s, now_text())
            doing += [f"SADD {keys.ids}", f"SETEX {keys.heartbeat(worker_id)}"]
        try:
            self._execute(commands, doing)
        except TunefleetError:
            with self._diary_lock:
                self._unsaid.extend(entries)
                self._unsaid_fields = fields | self._unsaid_fields
            raise

    def _execute(self, commands: Any, doing: list[str]) -> None:
        try:
            results = commands.execute(raise_on_error=False)
        except (RedisError, OSError, RuntimeError, ValueError) as error:  # the latter two of a client that was closed
            raise explained(error, self._url, doing[0], first=not self._greeted) from error
        for result, what in zip(results, doing, strict=True):
            if isinstance(result, Exception):
                raise explained(result, self._url, what, first=not self._greeted) from result

    def _drain(self) -> tuple[list[tuple[str, Entry]], Entry]:
        """Return what could not be told the last time."""
        with self._diary_lock:
            entries, fields = list(self._unsaid), self._unsaid_fields
            self._unsaid.clear()
            self._unsaid_fields = {}
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
        raise UnreachableError("What answers over Redis is not a Tunefleet server of a fitting version.") from error
