"""Whoever keeps a connection and never says a whole request, or never ends one, is sent away; others are served."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from tunefleet import http_heads
from tunefleet.agent.main import _Server as AgentServer
from tunefleet.api import launch
from tunefleet.http_heads import BoundedHeads

LINES = 200
"""Connections of the slow at once; a server that kept them would run out of descriptors with a few more."""


@pytest.fixture
def port() -> Iterator[int]:
    """Serve with the protocol of the server."""
    config = uvicorn.Config(PlainTextResponse("here"), http=BoundedHeads, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        yield bound.getsockname()[1]
        server.should_exit = True
        thread.join()


def ended(line: socket.socket) -> bytes:
    """Return all that is said until the other side hangs up."""
    line.settimeout(60)
    said = b""
    try:
        while piece := line.recv(1 << 16):
            said += piece
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HT",
        b"GET / HTTP/1.1\r\nHost: here\r\nX-Slow: 1\r\n",
        b"\r\n",
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\nGET / HTTP/1.1\r\nX-Half",
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n\r\n",
    ],
    ids=["nothing", "half a line", "half a head", "blank lines", "a second one, half", "blank lines behind one"],
)
def test_who_never_says_a_whole_request_is_sent_away(port: int, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(http_heads, "_HEAD_S", 0.05)
    monkeypatch.setattr(http_heads, "_EXTRA_TIME_S", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(said)
        if said.startswith(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n\r\n"):
            time.sleep(0.2)  # the answer has gone out, and the line rests
            line.sendall(b"\r\n")
        assert ended(line).count(b"here") == said.count(b"here\r\n\r\n")


def test_a_head_that_trickles_in_does_not_gain_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_heads, "_HEAD_S", 0.2)
    monkeypatch.setattr(http_heads, "_EXTRA_TIME_S", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"GET / HTTP/1.1\r\n")
        deadline = time.monotonic() + 60
        try:
            while time.monotonic() < deadline:
                line.sendall(b"X-A: 1\r\n")
                time.sleep(0.02)
        except OSError:
            return
    pytest.fail("the connection outlived its time")


def test_the_slow_keep_nobody_out(port: int) -> None:
    slow = [socket.create_connection(("127.0.0.1", port)) for _ in range(LINES)]
    try:
        for line in slow:
            line.sendall(b"GET / HTTP/1.1\r\nHost: ")
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
            assert ended(line).endswith(b"here")
    finally:
        for line in slow:
            line.close()


def test_a_head_without_end_is_refused_before_it_is_kept(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n")
        sent = 0
        try:
            while sent < 64 << 20:
                line.sendall(b"X-More: %s\r\n" % (b"a" * 1000))
                sent += 1000
        except OSError:
            pass
        assert sent < 32 << 20, "it is read on and on"
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\nX-Long: " + b"a" * (http_heads.MAX_HEAD_BYTES + 1))
        assert ended(line).startswith(b"HTTP/1.1 431 ")


def test_a_head_of_ordinary_size_in_small_pieces_is_served(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as line:
        for _ in range(2):  # the second one on the same connection begins to count anew
            line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n")
            for _ in range(40):
                line.sendall(b"X-Cookie: %s\r\n" % (b"a" * 1000))
            line.sendall(b"\r\n")
            said = b""
            while not said.endswith(b"here"):
                said += line.recv(1 << 16)
            assert said.startswith(b"HTTP/1.1 200")


def answer(line: socket.socket) -> bytes:
    line.settimeout(60)
    said = b""
    while not said.endswith(b"here"):
        piece = line.recv(1 << 16)
        assert piece, said
        said += piece
    return said


def test_what_is_left_of_a_body_that_was_answered_early_is_no_head(port: int) -> None:
    body = b"x" * (4 * http_heads.MAX_HEAD_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert answer(line).startswith(b"HTTP/1.1 200")
        line.sendall(body)
        line.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        assert answer(line).startswith(b"HTTP/1.1 200")


def test_what_is_left_of_a_body_does_not_keep_a_line_for_ever(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_heads, "_HEAD_S", 0.05)
    monkeypatch.setattr(http_heads, "_EXTRA_TIME_S", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n")
        assert answer(line).startswith(b"HTTP/1.1 200")
        line.sendall(b"x")
        assert ended(line) == b""


def test_server_and_agent_have_them() -> None:
    assert "BoundedHeads" in launch.make.__code__.co_names
    assert "BoundedHeads" in AgentServer.__init__.__code__.co_names
