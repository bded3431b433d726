"""A real HTTP server of somebody else: takes messages, and answers as it is told."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """A message as it came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """What the server saw and is to do."""

    port: int
    seen: list[Seen] = field(default_factory=list)
    taken: list[Seen] = field(default_factory=list)
    """Those that were answered well."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def events(self) -> list[str]:
        return [seen.json["event"] for seen in self.taken]


@contextmanager
def receiving(port: int = 0) -> Iterator[Receiver]:
    """Serve while the body runs.

    Args:
        port: Where; 0 takes a free port.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen = Seen(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            receiver.seen.append(seen)
            if receiver.status == 200:
                receiver.taken.append(seen)
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        receiver = Receiver(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()
