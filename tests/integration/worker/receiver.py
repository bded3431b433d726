"""A real HTTP server of somebody else: takes results and files, gives out files in ranges, fails when told to."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Receiver:
    """What the server saw, has, and is to do."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Statuses of the next answers; after them all is well."""
    files: dict[str, bytes] = field(default_factory=dict)
    etag: str | None = None
    cut_after: list[int] = field(default_factory=list)
    """Of the next downloads, after how many bytes the connection breaks."""
    answering: threading.Event = field(default_factory=threading.Event)
    """Cleared while what is sent is taken, and not answered."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Serve while the body runs."""
    receiver = Receiver()
    receiver.answering.set()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_POST(self) -> None:
            self._note(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(receiver.answers.pop(0) if receiver.answers else 200, b"{}")

        do_PUT = do_POST

        def do_GET(self) -> None:
            self._note(b"")
            if receiver.answers:
                self._answer(receiver.answers.pop(0), b"")
                return
            data = receiver.files.get(self.path.partition("?")[0])
            if data is None:
                self._answer(404, b"")
                return
            wanted = self.headers.get("Range", "")
            first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            if wanted and self.headers.get("If-Range") != receiver.etag:
                first, wanted = 0, ""
            self._answer(206 if wanted else 200, data[first:], cut=True)

        def _note(self, body: bytes) -> None:
            receiver.seen.append(Seen(self.command, self.path, dict(self.headers.items()), body))
            receiver.answering.wait(60)

        def _answer(self, status: int, body: bytes, *, cut: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if receiver.etag:
                self.send_header("ETag", receiver.etag)
            self.end_headers()
            if cut and receiver.cut_after:
                body = body[: receiver.cut_after.pop(0)]
                self.close_connection = True
            self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.answering.set()
        server.shutdown()
        server.server_close()
        thread.join()
