"""The engine's side of one connection: requests and responses, one JSON object per line.

{"op": "hello"}                     → {"ready": …} or {"error": …}
{"op": "render", "messages", …}     → {"text": …}
{"op": "generate"}, requests, {}    → {"answer": …} each, {"say": …}, {"end": true} or {"error": …}
{"op": "stream", "request"}         → {"piece": …} each, {"choice": …} or {"error": …}
{"op": "leave"}                     → {"busy": n}, or it ends
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol

from tunefleet.runtime.warm.engine_registry import peer_uid
from tunefleet.workloads.engine import protocol
from tunefleet.workloads.engine.protocol import Answer, Choice, Engine, Request
from tunefleet.workloads.faults import ClientGoneError

logger = logging.getLogger(__name__)


class InProcessEngine(Protocol):
    """Additions of an in-process engine to `Engine`: detection of disconnected clients, and a broken state."""

    broken: Exception | None
    """The error after which the engine cannot answer any more."""

    def generate(self, requests: Sequence[Request], *, gone: Callable[[], bool]) -> Iterator[Answer]:
        """Answer requests."""
        ...

    def stream(self, request: Request, *, gone: Callable[[], bool]) -> Generator[str, None, Choice]:
        """Stream the answer to a request."""
        ...


class EngineHost(Protocol):
    """The host as seen by a connection."""

    digest: str
    loaded: threading.Event
    engine: Engine | None
    failure: dict[str, Any] | None

    @property
    def connected(self) -> int:
        """The number of open connections."""
        ...

    def leave(self, *, besides: int = 0) -> bool:
        """End the engine if there are no connections besides these."""
        ...

    def fall(self) -> None:
        """End the broken engine, even with open connections."""
        ...

    def listen_to(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Add a listener for messages; returns a function that removes it."""
        ...


class ClientConnection:
    """One client connection."""

    def __init__(self, host: EngineHost, connection: socket.socket) -> None:
        self._host = host
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._sending = threading.Lock()

    def run(self) -> None:
        """Answer requests until the client disconnects."""
        # The socket stays open as long as the file made from it.
        with self._lines:
            self._serve()

    def _serve(self) -> None:
        if peer_uid(self._connection) != os.geteuid():
            logger.warning("A connection from another user is refused")
            return
        while (message := self._read()) is not None:
            if message.get("op") == "leave":
                # The connection of this request itself does not count.
                self._send({"leaves": True} if self._host.leave(besides=1) else {"busy": self._host.connected - 1})
                return
            # Clients may connect while the model is loading.
            self._host.loaded.wait()
            if self._host.failure is not None:
                self._send({"error": self._host.failure})
                return
            try:
                self._answer(message)
            except ClientGoneError:
                return
            except OSError:
                raise
            except Exception as error:
                if getattr(self._host.engine, "broken", None) is not None:
                    # The client sees the closed connection, starts another engine, and sends its requests again.
                    logger.exception("The engine is broken")
                    self._host.fall()
                    return
                logger.log(logging.INFO, "A request failed: %s", error, exc_info=True)
                self._send({"error": protocol.failure_of(error)})

    def _answer(self, message: dict[str, Any]) -> None:
        engine: Any = self._host.engine
        op = message.get("op")
        if op == "hello":
            ready = {"name": engine.name, "digest": self._host.digest, "has_template": engine.has_template}
            self._send({"ready": {**ready, "pid": os.getpid()}})
        elif op == "render":
            self._send({"text": engine.render(message["messages"], **message["kwargs"])})
        elif op == "generate":
            self._generate(engine)
        elif op == "stream":
            self._stream(engine, protocol.request_of(message["request"]))
        else:
            raise ValueError(f"There is no operation {op!r}.")

    def _generate(self, engine: InProcessEngine) -> None:
        requests = []
        while (message := self._read()) is not None and "request" in message:
            requests.append(protocol.request_of(message["request"]))
        remove_listener = self._host.listen_to(lambda sentence: self._send({"say": sentence}))
        try:
            for answer in engine.generate(requests, gone=self._gone):
                self._send({"answer": dataclasses.asdict(answer)})
        finally:
            remove_listener()
        self._send({"end": True})

    def _stream(self, engine: InProcessEngine, request: Request) -> None:
        pieces = engine.stream(request, gone=self._gone)
        try:
            while True:
                self._send({"piece": next(pieces)})
        except StopIteration as end:
            self._send({"choice": dataclasses.asdict(end.value)})
        finally:
            pieces.close()

    def _gone(self) -> bool:
        """Return whether the client has disconnected; clients send nothing while they wait for an answer."""
        # `poll` and not `select`, which fails for descriptors above 1023.
        watched = select.poll()
        watched.register(self._connection, select.POLLIN)
        if not watched.poll(0):
            return False
        try:
            return not self._connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def _read(self) -> dict[str, Any] | None:
        text = self._lines.readline()
        if not text.endswith(b"\n"):
            return None
        found: dict[str, Any] = json.loads(text)
        return found

    def _send(self, message: dict[str, Any]) -> None:
        # Messages of the engine come from other threads than answers; lines must not be interleaved.
        with self._sending:
            self._connection.sendall(protocol.to_line(message))
