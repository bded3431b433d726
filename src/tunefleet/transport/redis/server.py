"""The Redis link, server's end: answers what workers say on the event streams.

One consumer group of all servers reads; a server that dies leaves what it had read and not answered, and another claims
it. A held exchange is a coroutine of its own, so that reading never waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from pydantic import ValidationError
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.schemas.worker_link import ExchangeReply, ExchangeRequest, Offer, RegisterReply, RegisterRequest
from tunefleet.transport.redis import consumer_groups as groups
from tunefleet.transport.redis.chunking import Entry, about, closing, dispatch, dumps, now_text, refusal, wishes
from tunefleet.transport.redis.consumer_groups import Found, Gone, order_of
from tunefleet.transport.redis.errors import explained, is_gone_group, shown
from tunefleet.transport.redis.fleet_identity import LEASE_S, TICK_S, OtherStoreError, Store, StoreClaim
from tunefleet.transport.redis.keys import INBOX_KEPT, INLINE_BYTES, REGISTRATION, Keys

log = logging.getLogger(__name__)

_BLOCK_S: Final = 2.0
_READ_S: Final = 10.0
_COUNT: Final = 256
_CONNECTIONS: Final = 64
_MAX_BACKOFF_S: Final = 5.0


class Desk(Protocol):
    """Who decides what a worker is answered."""

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Take up a worker's process."""

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Take what a worker says; answer as soon as there is something to answer."""

    async def fetch(self, digest: str) -> bytes:
        """Return a message that a worker has put over HTTP."""

    async def keep(self, body: bytes, token: str) -> str:
        """Store a message that who holds the token may fetch over HTTP; returns its digest."""

    async def elastic_disabled(self) -> frozenset[str]:
        """Return the workers that elastic scaling keeps out of the pool."""

    async def workers(self) -> Mapping[str, bool]:
        """Return the workers that are known, and whether each is there."""


class RedisHub:
    """Serves the Redis link until it is closed; while Redis is away it waits, and the HTTP link works on."""

    def __init__(self, url: str, keys: Keys, desk: Desk, *, name: str, store: Store) -> None:
        self._url, self._keys, self._desk, self._name = url, keys, desk, name
        # Bytes that are no text come from a stranger: what cannot be read must not keep the rest from being read.
        # Who finds all connections in use waits for one: a fleet that speaks at once is answered in turn.
        self._redis: Any = Redis.from_pool(BlockingConnectionPool.from_url(
            url, max_connections=_CONNECTIONS, timeout=None,
            decode_responses=True, encoding_errors="replace", protocol=2,
            socket_timeout=_READ_S + _BLOCK_S, socket_connect_timeout=_READ_S,
            retry=Retry(NoBackoff(), 0),
        ))  # fmt: skip
        self._gone = Gone(self._redis, keys)
        self._claim = StoreClaim(self._redis, keys, store, url)
        self._handlers: set[asyncio.Task[None]] = set()
        self._failed = 0
        self._first = True

    async def serve(self) -> None:
        """Serve until Redis fails, and pause; to be called again and again, and cancelled to end."""
        error: Exception | None = None
        outside = self._claim.outside
        try:
            await self._serve()
        except (RedisError, OSError, OtherStoreError) as trouble:
            error = trouble
        if isinstance(error, OtherStoreError):
            log.log(logging.DEBUG if outside else logging.ERROR, "%s HTTP is served.", error)
            self._failed = 1
            await asyncio.sleep(TICK_S)
        elif error is not None and is_gone_group(error):
            log.warning("Redis at %s was emptied; its groups are made anew, nothing is lost.", shown(self._url))
        elif error is not None:
            self._note(error)
            await asyncio.sleep(min(0.2 * 2.0 ** min(self._failed, 8), _MAX_BACKOFF_S))

    async def close(self) -> None:
        """Send what is answered already, and let go of Redis."""
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=2.0)
        left = list(self._handlers)
        for handler in left:
            handler.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        try:
            await self._redis.delete(self._keys.server(self._name))
            await self._claim.drop()
        except (RedisError, OSError) as error:
            log.debug("Redis was not left in good order: %r", error)
        finally:
            # Its connections are let go of even if it does not answer any more.
            await self._redis.aclose()

    def _note(self, error: Exception) -> None:
        """Say the first failure in a row aloud."""
        told = explained(error, self._url, f"XREADGROUP {self._keys.events}")
        self._failed += 1
        level = logging.WARNING if self._failed == 1 else logging.DEBUG
        log.log(level, "%s Workers on the Redis link wait; HTTP is served. Trying again.", told)

    async def _serve(self) -> None:
        await self._claim.hold()
        await groups.make(self._redis, self._keys)
        await self._tick()
        if self._failed or self._first:
            log.info("The Redis link is up at %s, topic %s.", shown(self._url), self._keys.topic)
        self._failed, self._first = 0, False
        self._take(await groups.backlog(self._redis, self._keys, self._name, count=_COUNT))
        await _together(self._listen, self._tick_later)

    async def _listen(self) -> None:
        found = await groups.read(self._redis, self._keys, self._name, count=_COUNT, block_s=_BLOCK_S)
        told = [each for each in found if not each.asks(self._keys.topic)]
        await groups.done(self._redis, self._keys, told, delete=False)
        self._take(each for each in found if each.asks(self._keys.topic))

    async def _tick_later(self) -> None:
        await asyncio.sleep(TICK_S)
        await self._tick()

    async def _tick(self) -> None:
        """Say that this server lives, take over from those that do not, and mirror what people look up in Redis."""
        await self._claim.hold()
        await self._redis.set(self._keys.server(self._name), now_text(), ex=LEASE_S)
        if not await self._redis.exists(self._keys.epoch):
            await groups.make(self._redis, self._keys)
        self._take(await groups.claim(self._redis, self._keys, self._name))
        wanted, known = await self._desk.elastic_disabled(), await self._desk.workers()
        there = set(await self._redis.smembers(self._keys.elastic_disabled))
        if wanted - there:
            await self._redis.sadd(self._keys.elastic_disabled, *sorted(wanted - there))
        # The set is shared with fleets that have topics of their own: their workers are theirs.
        if back := (there - wanted) & known.keys():
            await self._redis.srem(self._keys.elastic_disabled, *sorted(back))
        await self._gone.clear(known)

    def _take(self, found: Iterable[Found]) -> None:
        for each in found:
            handler = asyncio.create_task(self._handle(each))
            self._handlers.add(handler)
            handler.add_done_callback(self._handlers.discard)

    async def _handle(self, found: Found) -> None:
        """Answer one message; whatever goes wrong, its worker asks again."""
        try:
            parts = await self._answer(found) if found.asks(self._keys.topic) else []
            await self._send(found, parts)
        except (RedisError, OSError) as error:
            told = explained(error, self._url, f"XADD {self._keys.inbox(found.worker_id)}")
            log.log(logging.WARNING if not self._failed else logging.DEBUG, "An answer is not delivered: %s", told)
            await self._give_up(found)
        except Exception:
            log.exception("A message of the worker %.100r could not be answered.", found.worker_id)
            await self._give_up(found)

    async def _give_up(self, found: Found) -> None:
        """Strike a message out without an answer; one that cannot be struck out now is read again later."""
        try:
            await groups.done(self._redis, self._keys, [found], delete=True)
        except (RedisError, OSError) as error:
            log.debug("A message stays in Redis for now: %r", error)

    async def _answer(self, found: Found) -> list[tuple[str, Entry]]:
        """Return the entries of the answer, each with its stream; none if nobody waits for it any more."""
        fields = found.fields
        late, inbox = False, self._keys.inbox(found.worker_id)
        try:
            late = await groups.age_s(self._redis, found) > float(fields.get("patience_s", "0"))
            if fields["type"] == REGISTRATION:
                return [] if late else [(inbox, await self._register(found))]
            body = await self._desk.fetch(fields["digest"]) if "digest" in fields else fields.get("body", "").encode()
            request = ExchangeRequest.model_validate_json(body)
            if request.worker_id != found.worker_id:
                raise ValueError("it speaks for another worker")
            if late:
                # Its news counts; what it wanted is over.
                request = request.model_copy(update={"want": {}, "wait_s": 0.0})
            reply = await self._desk.exchange(request)
            return [] if late else await self._parts(found.worker_id, reply)
        except TunefleetError as error:
            return [] if late else [(inbox, refusal(error))]
        except (ValidationError, ValueError) as error:
            log.warning("A message for the worker %.100r in Redis is none of ours: %.200r", found.worker_id, error)
            told = UnreachableError("The server cannot read this message.", hint="Both need fitting versions.")
            return [(inbox, refusal(told))]

    async def _register(self, found: Found) -> Entry:
        request = RegisterRequest.model_validate_json(found.fields.get("body", ""))
        if request.worker_id != found.worker_id:
            raise ValueError("it speaks for another worker")
        worker = self._keys.worker(request.worker_id)
        before, session = await self._redis.hmget(worker, "registration", "session")
        if before and found.order < order_of(before):
            # Claimed from a server that died, or read again: a newer process has registered since.
            return refusal(UnreachableError("A later registration came first."))
        reply = await self._desk.register(request)
        has = request.capabilities
        fields = {
            "registration": found.id,
            "session": request.session,
            "cache_models_json": dumps(list(has.cached_models)),
            "cache_datasets_json": dumps(list(has.cached_datasets)),
            "cache_updated_ts": now_text(),
        }
        commands = self._redis.pipeline(transaction=False)
        if session != request.session:
            # What was said to the process before it is of no use to this one.
            for stream in (self._keys.inbox(request.worker_id), self._keys.commands(request.worker_id)):
                commands.execute_command("XTRIM", stream, "MAXLEN", "0")
        commands.hset(worker, mapping=fields)
        await commands.execute()
        return {**closing(ExchangeReply()), "body": reply.model_dump_json()}

    async def _parts(self, worker_id: str, reply: ExchangeReply) -> list[tuple[str, Entry]]:
        inbox, commands = self._keys.inbox(worker_id), self._keys.commands(worker_id)
        parts = [(commands, entry) for entry in wishes(reply.commands, reply.desired)]
        parts += [(inbox, await self._dispatch(offer, worker_id)) for offer in reply.offers]
        return [*parts, (inbox, closing(reply))]

    async def _dispatch(self, offer: Offer, worker_id: str) -> Entry:
        entry = dispatch(offer, worker_id)
        if sum(map(len, entry.values())) <= INLINE_BYTES:
            return entry
        digest = await self._desk.keep(offer.model_dump_json().encode(), offer.token)
        return {**about(offer, worker_id), "digest": digest, "token": offer.token}

    async def _send(self, found: Found, parts: list[tuple[str, Entry]]) -> None:
        """Write the parts, and strike the message out: one transaction."""
        head = {"re": found.fields.get("id", ""), "session": found.fields.get("session", "")}
        commands = self._redis.pipeline(transaction=True)
        for stream, entry in parts:
            commands.xadd(stream, {**head, **entry}, maxlen=INBOX_KEPT, approximate=True)
        commands.execute_command("XACK", found.stream, self._keys.group, found.id)
        commands.execute_command("XDEL", found.stream, found.id)
        await commands.execute()


async def _together(*steps: Callable[[], Awaitable[None]]) -> None:
    """Repeat steps side by side until one fails, or this is cancelled; then none goes on.

    Besides being cancelled each is told by a flag: `asyncio.wait_for` before Python 3.12, by which redis-py writes,
    swallows a cancellation that comes as its call returns (python/cpython issue 86296).
    """
    over = asyncio.Event()

    async def repeat(step: Callable[[], Awaitable[None]]) -> None:
        while not over.is_set():
            await step()

    running = [asyncio.create_task(repeat(step)) for step in steps]
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        over.set()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    for task in ended:
        task.result()
