"""Bodies of requests over a real connection: in pieces of any size, large, broken off."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tunefleet.api import uvicorn_protocol
from tunefleet.api.uvicorn_protocol import Protocol


@pytest.fixture
def came() -> list[int]:
    """Lengths of the pieces in which the last body reached the app."""
    return []


@pytest.fixture
def broke() -> threading.Event:
    """Set when the app is told that a connection broke."""
    return threading.Event()


@pytest.fixture
def port(came: list[int], broke: threading.Event) -> Iterator[int]:
    """Serve with the protocol."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        """Say the digest of a body, and its length."""
        if scope["path"] == "/large":
            while (await receive())["type"] != "http.disconnect":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                for _ in range(64):
                    await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            broke.set()
            return
        found = hashlib.sha256()
        came.clear()
        try:
            async for piece in Request(scope, receive).stream():
                assert isinstance(piece, bytes)
                found.update(piece)
                came.append(len(piece))
        except ClientDisconnect:
            broke.set()
            return
        await PlainTextResponse(f"{sum(came)} {found.hexdigest()}")(scope, receive, send)

    server = uvicorn.Server(uvicorn.Config(answer, http=Protocol, ws="none", lifespan="off", log_config=None))
    with socket.create_server(("127.0.0.1", 0)) as bound:
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


def test_a_large_body_reaches_the_app_in_few_pieces(port: int, came: list[int]) -> None:
    body = os.urandom((5 << 20) + 7)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert line.recv(1 << 16).startswith(b"HTTP/1.1 200")
    pieces_ = [size for size in came if size]
    assert sum(pieces_) == len(body)
    assert min(pieces_[:-1]) >= 1 << 20


def test_of_a_broken_connection_the_app_gets_what_had_arrived(
    port: int, came: list[int], broke: threading.Event
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 5000\r\n\r\n" + b"x" * 3000)
    assert broke.wait(60)
    assert came == [3000]


@pytest.mark.parametrize(
    "said",
    [b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 5000\r\n\r\nxxx", b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n"],
)
def test_who_sends_no_more_or_reads_nothing_is_let_go(
    port: int, broke: threading.Event, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    monkeypatch.setattr(uvicorn_protocol, "_STILL_S", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(said)
        assert broke.wait(60)
