"""Proxy a request that only the leader can answer: the state of workers, agents and chats is in its memory.

Any server accepts any request. One that needs this state is forwarded unchanged; while there is no leader it waits
briefly and then fails with 503, which clients and workers retry. What the leader does for such a request is fenced like
its own work.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tunefleet.api import leader_mirror, problem_details
from tunefleet.api.middleware.request_metrics import HEADER, request_id_of
from tunefleet.errors import NotLeadingError, UnreachableError
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ha.leader_election import SEEN
from tunefleet.orchestrator.leadership import fenced
from tunefleet.transport.forward import FORWARDED_FOR, PEER, ForwardedResponse, NotSentError, Peers, epoch_of, proof

log = logging.getLogger(__name__)

REQUEST_ID: Final = HEADER.lower().encode()
WAIT_S: Final = 6.0
"""How long a request waits for a leader; an election takes at most five seconds."""
_PAUSE_S: Final = 0.2
_LONG_S: Final = 60.0
_LEADERS: Final = re.compile(
    r"^/api/v1/(link/|workers(/|$)|live$|endpoints(/|$)|tasks/[^/]+/(chat(/|$)|serve/|v1/))"
    r"|^/api/training/(agents?(/|$)|local(/|$)|jobs/[^/]+/metrics$)"
    r"|^/workers(/|$)"
    r"|^/serve/"
)
_BODILESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def needs_leader(path: str) -> bool:
    """Return whether only the leader can answer a request."""
    return _LEADERS.match(path) is not None


class Forward:
    """Forwards requests that only the leader can answer."""

    def __init__(self, app: ASGIApp, *, core: ServerContext) -> None:
        self._app = app
        self._core = core
        self._peers: Peers | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            if self._peers is not None:
                await self._peers.close()
            return
        leading = self._core.leading
        if scope["type"] != "http" or not leading.shared:
            await self._app(scope, receive, send)
            return
        asked = self._from_peer(scope)
        if asked is not None and scope["path"] == leader_mirror.PATH and self._leads():
            await Response(leader_mirror.dump(self._core), media_type="application/json")(scope, receive, send)
            return
        if not needs_leader(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            if self._leads():
                await self._serve(scope, receive, send)
            elif asked is not None:
                # Forwarded already: the server that did it learns of the new leader, too. A second hop could loop.
                raise NotLeadingError("This server is not the leader.", hint="Try again in a moment.")
            else:
                await _ForwardedRequest(self, scope, receive, send).run()
        except UnreachableError as error:
            refusal = problem_details.from_error(NotLeadingError(error.message, hint=error.hint, detail=error.detail))
            await refusal(scope, receive, send)

    async def leader(self) -> tuple[int, str] | None:
        """Wait until another server leads; `None` if it is this one.

        Raises:
            NotLeadingError: If there is no leader within `WAIT_S`, or its URL is unknown.
        """
        core, leading = self._core, self._core.leading
        ends_at = core.clock.monotonic() + WAIT_S
        while not core.signals.closed:
            seen = core.signals.version(SEEN)
            row = leading.row
            if self._leads():
                return None
            if row.server_id is not None and leading.epoch is None and row.url is not None:
                return row.epoch, row.url
            left_s = ends_at - core.clock.monotonic()
            if left_s <= 0:
                break
            await core.signals.wait(SEEN, left_s, seen)
        if leading.row.server_id is not None and leading.row.url is None:
            raise NotLeadingError(
                "The leader has not published a URL for other servers.", hint="Set TUNEFLEET_PEER_URL on it."
            )
        raise NotLeadingError("There is no leader at the moment.", hint="Try again in a moment.")

    def peers(self) -> Peers:
        """Return the connections to other servers."""
        if self._peers is None:
            self._peers = Peers()
        return self._peers

    @property
    def core(self) -> ServerContext:
        """The server's context."""
        return self._core

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request on this server."""
        await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        with fenced(self._core.leading.epoch):
            await self._app(scope, receive, send)

    def _leads(self) -> bool:
        return self._core.leading.leads(self._core.clock.monotonic())

    def _from_peer(self, scope: Scope) -> int | None:
        """Return the leader epoch that a forwarding server named; `None` if the request was not forwarded."""
        headers = Headers(scope=scope)
        given = headers.get(PEER.decode())
        epoch = epoch_of(self._core.secret, given.encode("latin-1")) if given else None
        if epoch is not None:
            named = headers.get(FORWARDED_FOR.decode(), "").rpartition(",")[2].strip()
            if named:
                # The forwarding server proved its identity, so its header may replace the client's address.
                scope["client"] = (named, 0)
        return epoch


class _ForwardedRequest:
    """One request forwarded to the leader, and its response."""

    def __init__(self, forward: Forward, scope: Scope, receive: Receive, send: Send) -> None:
        self._forward = forward
        self._scope, self._receive, self._send = scope, receive, send
        self._began = False
        self._whole = asyncio.Event()
        self._gone = asyncio.Event()
        self._answered = False

    async def run(self) -> None:
        """Forward the request; again if none of it has been sent."""
        ends_at = asyncio.get_running_loop().time() + WAIT_S
        while True:
            found = await self._forward.leader()
            if found is None:
                await self._forward.serve(self._scope, self._receive, self._send)
                return
            try:
                await self._while_it_leads(*found)
                return
            except NotSentError:
                # A body is a stream that can be read once: after its first byte the request cannot be repeated.
                if self._began or asyncio.get_running_loop().time() >= ends_at:
                    raise
                await asyncio.sleep(_PAUSE_S)

    async def _while_it_leads(self, epoch: int, url: str) -> None:
        """Forward the request until it is answered, the client disconnects, or another server leads."""
        passing = asyncio.create_task(self._pass(epoch, url))
        watching = [asyncio.create_task(self._until_gone()), asyncio.create_task(self._until_followed(epoch))]
        try:
            await asyncio.wait([passing, *watching], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in watching:
                task.cancel()
            if not passing.done():
                passing.cancel()
            await asyncio.gather(passing, *watching, return_exceptions=True)
        if not passing.cancelled():
            passing.result()
        elif not self._gone.is_set() and not self._answered:
            raise NotLeadingError("Another server has become the leader.", hint="Try again in a moment.")

    async def _pass(self, epoch: int, url: str) -> None:
        scope = self._scope
        path: bytes = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope["query_string"]
        body = None if scope["method"] in _BODILESS else self._body()
        if body is None:
            self._whole.set()
        answer = await self._forward.peers().send(
            scope["method"], url, path + (b"?" + query if query else b""), self._headers(epoch), body
        )
        async with answer:
            await self._give(answer)

    async def _give(self, answer: ForwardedResponse) -> None:
        self._answered = True
        await self._send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        try:
            async for piece in answer.pieces():
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except UnreachableError as error:
            # Without a final message uvicorn cuts the connection: the client notices that the body is incomplete.
            log.debug("%s %s", error, error.detail)
            return
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _headers(self, epoch: int) -> list[tuple[bytes, bytes]]:
        replaced_headers = {PEER, FORWARDED_FOR, REQUEST_ID}
        given = [(name, value) for name, value in self._scope["headers"] if name not in replaced_headers]
        given.append((REQUEST_ID, request_id_of(self._scope).encode()))
        client = self._scope.get("client")
        if client is not None:
            given.append((FORWARDED_FOR, str(client[0]).encode()))
        return [*given, (PEER, proof(self._forward.core.secret, epoch))]

    async def _body(self) -> AsyncIterator[bytes]:
        self._began = True
        while True:
            message: Message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone.set()
                raise NotLeadingError("The client disconnected.")
            if message.get("body"):
                yield message["body"]
            if not message.get("more_body"):
                self._whole.set()
                return

    async def _until_gone(self) -> None:
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()

    async def _until_followed(self, epoch: int) -> None:
        core = self._forward.core
        while True:
            seen, row = core.signals.version(SEEN), core.leading.row
            if row.epoch != epoch or row.server_id is None or core.leading.epoch is not None or core.signals.closed:
                return
            await core.signals.wait(SEEN, _LONG_S, seen)
