"""The Redis transport, server's end: answers the messages of workers on the event streams.

All servers read in one consumer group; entries that a dead server had read and not answered are claimed by another. A
held exchange is a separate coroutine, so that reading never blocks.
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
from tunefleet.transport.redis.consumer_groups import StreamEntry, WorkerCleanup, order_of
from tunefleet.transport.redis.errors import explained, is_gone_group, shown
from tunefleet.transport.redis.fleet_identity import LEASE_S, TICK_S, OtherStoreError, Store, StoreClaim
from tunefleet.transport.redis.keys import INBOX_KEPT, INLINE_BYTES, REGISTRATION, Keys

log = logging.getLogger(__name__)

_BLOCK_S: Final = 2.0
_READ_S: Final = 10.0
_COUNT: Final = 256
_CONNECTIONS: Final = 64
_MAX_BACKOFF_S: Final = 5.0


class WorkerService(Protocol):
    """Handles the messages of workers."""

    async def register(self, request: RegisterRequest) -> RegisterReply:
        """Register a worker process."""

    async def exchange(self, request: ExchangeRequest) -> ExchangeReply:
        """Process a worker's report; return when there is something to send."""

    async def fetch(self, digest: str) -> bytes:
        """Return a message that a worker uploaded over HTTP."""

    async def keep(self, body: bytes, token: str) -> str:
        """Store a message for download over HTTP by the token's holder; returns its digest."""

    async def elastic_disabled(self) -> frozenset[str]:
        """Return the workers that elastic scaling keeps on standby."""

    async def workers(self) -> Mapping[str, bool]:
        """Return the known workers, and whether each is online."""


class RedisHub:
    """Serves the Redis transport until it is closed; while Redis is down it waits, and HTTP continues to work."""

    def __init__(self, url: str, keys: Keys, service: WorkerService, *, name: str, store: Store) -> None:
        self._url, self._keys, self._service, self._name = url, keys, service, name
        # Invalid UTF-8 of a foreign client must not prevent reading the rest, hence `replace`. A blocking pool:
        # when all workers write at the same moment, replies wait for a free connection instead of failing.
        self._redis: Any = Redis.from_pool(BlockingConnectionPool.from_url(
            url, max_connections=_CONNECTIONS, timeout=None,
            decode_responses=True, encoding_errors="replace", protocol=2,
            socket_timeout=_READ_S + _BLOCK_S, socket_connect_timeout=_READ_S,
            retry=Retry(NoBackoff(), 0),
        ))  # fmt: skip
        self._cleanup = WorkerCleanup(self._redis, keys)
        self._claim = StoreClaim(self._redis, keys, store, url)
        self._handlers: set[asyncio.Task[None]] = set()
        self._failed = 0
        self._first = True

    async def serve(self) -> None:
        """Serve until Redis fails, then pause; called repeatedly, and cancelled to stop."""
        error: Exception | None = None
        outside = self._claim.outside
        try:
            await self._serve()
        except (RedisError, OSError, OtherStoreError) as failure:
            error = failure
        if isinstance(error, OtherStoreError):
            log.log(logging.DEBUG if outside else logging.ERROR, "%s Serving HTTP only.", error)
            self._failed = 1
            await asyncio.sleep(TICK_S)
        elif error is not None and is_gone_group(error):
            log.warning("Redis at %s was emptied; creating its groups again. No data is lost.", shown(self._url))
        elif error is not None:
            self._note(error)
            await asyncio.sleep(min(0.2 * 2.0 ** min(self._failed, 8), _MAX_BACKOFF_S))

    async def close(self) -> None:
        """Send finished replies, and close the connections."""
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
            log.debug("Could not clean up in Redis: %r", error)
        finally:
            # Close the connections even if Redis no longer responds.
            await self._redis.aclose()

    def _note(self, error: Exception) -> None:
        """Log the first failure in a row as a warning."""
        message = explained(error, self._url, f"XREADGROUP {self._keys.events}")
        self._failed += 1
        level = logging.WARNING if self._failed == 1 else logging.DEBUG
        log.log(level, "%s Workers on Redis wait; HTTP continues to work. Retrying.", message)

    async def _serve(self) -> None:
        await self._claim.hold()
        await groups.make(self._redis, self._keys)
        await self._tick()
        if self._failed or self._first:
            log.info("The Redis transport is ready at %s, topic %s.", shown(self._url), self._keys.topic)
        self._failed, self._first = 0, False
        self._take(await groups.backlog(self._redis, self._keys, self._name, count=_COUNT))
        await _repeat_concurrently(self._listen, self._tick_later)

    async def _listen(self) -> None:
        found = await groups.read(self._redis, self._keys, self._name, count=_COUNT, block_s=_BLOCK_S)
        foreign = [each for each in found if not each.asks(self._keys.topic)]
        await groups.done(self._redis, self._keys, foreign, delete=False)
        self._take(each for each in found if each.asks(self._keys.topic))

    async def _tick_later(self) -> None:
        await asyncio.sleep(TICK_S)
        await self._tick()

    async def _tick(self) -> None:
        """Renew this server's keys, claim entries of dead servers, and mirror public state into Redis."""
        await self._claim.hold()
        # The lease spans several ticks: one slow tick must not make other servers claim this one's entries.
        await self._redis.set(self._keys.server(self._name), now_text(), ex=LEASE_S)
        if not await self._redis.exists(self._keys.epoch):
            await groups.make(self._redis, self._keys)
        self._take(await groups.claim(self._redis, self._keys, self._name))
        wanted, known = await self._service.elastic_disabled(), await self._service.workers()
        there = set(await self._redis.smembers(self._keys.elastic_disabled))
        if wanted - there:
            await self._redis.sadd(self._keys.elastic_disabled, *sorted(wanted - there))
        # The set is shared with fleets of other topics: leave their workers alone.
        if back := (there - wanted) & known.keys():
            await self._redis.srem(self._keys.elastic_disabled, *sorted(back))
        await self._cleanup.clear(known)

    def _take(self, found: Iterable[StreamEntry]) -> None:
        for each in found:
            handler = asyncio.create_task(self._handle(each))
            self._handlers.add(handler)
            handler.add_done_callback(self._handlers.discard)

    async def _handle(self, found: StreamEntry) -> None:
        """Answer one message; after any failure its worker sends it again."""
        try:
            parts = await self._answer(found) if found.asks(self._keys.topic) else []
            await self._send(found, parts)
        except (RedisError, OSError) as error:
            message = explained(error, self._url, f"XADD {self._keys.inbox(found.worker_id)}")
            log.log(logging.WARNING if not self._failed else logging.DEBUG, "A reply was not delivered: %s", message)
            await self._give_up(found)
        except Exception:
            log.exception("Could not answer a message from worker %.100r.", found.worker_id)
            await self._give_up(found)

    async def _give_up(self, found: StreamEntry) -> None:
        """Delete a message without a reply; one that cannot be deleted now is read again later."""
        try:
            await groups.done(self._redis, self._keys, [found], delete=True)
        except (RedisError, OSError) as error:
            log.debug("Could not delete a message from Redis yet: %r", error)

    async def _answer(self, found: StreamEntry) -> list[tuple[str, Entry]]:
        """Return the entries of the reply, each with its stream; empty if the worker no longer waits for it."""
        fields = found.fields
        late, inbox = False, self._keys.inbox(found.worker_id)
        try:
            late = await groups.age_s(self._redis, found) > float(fields.get("patience_s", "0"))
            if fields["type"] == REGISTRATION:
                return [] if late else [(inbox, await self._register(found))]
            body = (
                await self._service.fetch(fields["digest"]) if "digest" in fields else fields.get("body", "").encode()
            )
            request = ExchangeRequest.model_validate_json(body)
            if request.worker_id != found.worker_id:
                raise ValueError("the message is for another worker")
            if late:
                # Process its report, but offer nothing: the worker no longer waits.
                request = request.model_copy(update={"want": {}, "wait_s": 0.0})
            reply = await self._service.exchange(request)
            return [] if late else await self._parts(found.worker_id, reply)
        except TunefleetError as error:
            return [] if late else [(inbox, refusal(error))]
        except (ValidationError, ValueError) as error:
            log.warning("Invalid message for worker %.100r in Redis: %.200r", found.worker_id, error)
            unparsable = UnreachableError(
                "The server cannot parse this message.", hint="Use compatible versions of server and worker."
            )
            return [(inbox, refusal(unparsable))]

    async def _register(self, found: StreamEntry) -> Entry:
        request = RegisterRequest.model_validate_json(found.fields.get("body", ""))
        if request.worker_id != found.worker_id:
            raise ValueError("the message is for another worker")
        worker = self._keys.worker(request.worker_id)
        before, session = await self._redis.hmget(worker, "registration", "session")
        if before and found.order < order_of(before):
            # Claimed from a dead server, or read again: a newer process has registered since.
            return refusal(UnreachableError("A later registration was processed first."))
        reply = await self._service.register(request)
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
            # Messages for the previous process are useless for this one.
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
        digest = await self._service.keep(offer.model_dump_json().encode(), offer.token)
        return {**about(offer, worker_id), "digest": digest, "token": offer.token}

    async def _send(self, found: StreamEntry, parts: list[tuple[str, Entry]]) -> None:
        """Write the parts of a reply and delete the message, in one transaction."""
        head = {"re": found.fields.get("id", ""), "session": found.fields.get("session", "")}
        commands = self._redis.pipeline(transaction=True)
        for stream, entry in parts:
            commands.xadd(stream, {**head, **entry}, maxlen=INBOX_KEPT, approximate=True)
        commands.execute_command("XACK", found.stream, self._keys.group, found.id)
        commands.execute_command("XDEL", found.stream, found.id)
        await commands.execute()


async def _repeat_concurrently(*steps: Callable[[], Awaitable[None]]) -> None:
    """Repeat several steps concurrently until one fails or this is cancelled; then stop all.

    A flag stops them in addition to the cancellation: `asyncio.wait_for` before Python 3.12, which redis-py uses for
    writes, swallows a cancellation that arrives as its call returns (python/cpython issue 86296).
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
