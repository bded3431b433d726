"""Bodies of requests over a real connection: in pieces of any size, large, broken off."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tunefleet.api import launch
from tunefleet.api.middleware import request_limits
from tunefleet.http_heads import BoundedHeads


@pytest.fixture
def broke() -> threading.Event:
    """Set when the app is told that a connection broke."""
    return threading.Event()


@pytest.fixture
def port(broke: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Serve as the server does, with little patience."""
    monkeypatch.setattr(request_limits, "_STILL_S", 0.5)
    monkeypatch.setattr(launch, "_UNREAD_S", 0.5)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        """Say the digest of a body, and its length."""
        if scope["path"] == "/large":
            while (await receive())["type"] != "http.disconnect":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for _ in range(64):
                    await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            broke.set()
            return
        found, size = hashlib.sha256(), 0
        try:
            async for piece in Request(scope, receive).stream():
                assert isinstance(piece, bytes)
                found.update(piece)
                size += len(piece)
        except ClientDisconnect:
            broke.set()
            return
        await PlainTextResponse(f"{size} {found.hexdigest()}")(scope, receive, send)

    app = request_limits.BodyLimit(answer, max_body_bytes=8 << 20, max_upload_bytes=8 << 20)
    config = uvicorn.Config(app, loop="uvloop", http=BoundedHeads, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with launch.bind("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        yield bound.getsockname()[1]
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("chunk", [7, 1000, 1 << 20])
def test_a_body_in_pieces_of_any_size_arrives_as_it_was_sent(port: int, chunk: int) -> None:
    body = os.urandom(min(chunk * 2000, 3 << 20))
    chunks = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
    wanted = f"{len(body)} {hashlib.sha256(body).hexdigest()}".encode()
    head = b"POST / HTTP/1.1\r\nHost: here\r\n"
    with socket.create_connection(("127.0.0.1", port)) as line:
        for said in (
            b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body),
            b"%sTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n%s" % (head, framed),
        ):
            line.sendall(said)
            reply = b""
            while wanted not in reply:
                got = line.recv(1 << 16)
                assert got, reply
                reply += got


def test_half_a_body_and_no_more_is_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.settimeout(60)
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 5000\r\n\r\nxxx")
        reply = b""
        while got := line.recv(1 << 16):
            reply += got
    assert reply.startswith(b"HTTP/1.1 408")
    assert b"ody was received for" in reply


def test_a_slow_body_is_no_silent_one(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 8\r\n\r\n")
        for _ in range(8):
            time.sleep(0.2)
            line.sendall(b"x")
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the kernel ends no connection that is not read")
def test_who_reads_nothing_is_let_go(port: int, broke: threading.Event) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        assert broke.wait(60)
