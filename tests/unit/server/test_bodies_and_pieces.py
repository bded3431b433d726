"""Files that several send at the same time are read once, and bodies reach the app as they were sent."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tunefleet.server import pieces, protocol
from tunefleet.server.protocol import Protocol

SIZE = 2 * pieces.PIECE_BYTES + 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(os.urandom(SIZE))
    return tmp_path / "file"


def read(file: Path) -> AsyncGenerator[bytes, None]:
    return pieces.read(file, pieces.Opened(file), SIZE)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each read began."""
    found: list[int] = []
    whole: Callable[[int, int, int], bytes] = os.pread

    def pread(descriptor: int, count: int, start: int) -> bytes:
        found.append(start)
        return whole(descriptor, count, start)

    monkeypatch.setattr(os, "pread", pread)
    return found


async def test_who_reads_at_the_same_time_reads_once(file: Path, reads: list[int]) -> None:
    first, second = read(file), read(file)
    got: tuple[list[bytes], list[bytes]] = ([], [])
    async for piece in first:
        got[0].append(piece)
        got[1].append(await anext(second))
    assert await anext(second, None) is None
    assert b"".join(got[0]) == b"".join(got[1]) == file.read_bytes()
    assert sorted(reads) == [0, pieces.PIECE_BYTES, 2 * pieces.PIECE_BYTES]


async def test_what_nobody_wants_any_more_is_not_kept(file: Path, reads: list[int]) -> None:
    for _ in range(2):
        assert b"".join([piece async for piece in read(file)]) == file.read_bytes()
    assert len(reads) == 6


async def test_one_who_gives_up_takes_nothing_from_the_others(file: Path) -> None:
    going, staying = read(file), read(file)
    start = asyncio.create_task(anext(going))
    there = asyncio.create_task(anext(staying))
    while not pieces._pieces:
        await asyncio.sleep(0)
    start.cancel()
    whole = file.read_bytes()
    file.unlink()
    got = await there + b"".join([piece async for piece in staying])
    await asyncio.wait([start])
    assert (start.cancelled(), got == whole) == (True, True)


async def test_one_who_gives_up_twice_closes_nothing_that_others_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, whole = threading.Event(), os.pread

    def pread(descriptor: int, count: int, start: int) -> bytes:
        assert may.wait(60)
        return whole(descriptor, count, start)

    monkeypatch.setattr(os, "pread", pread)
    going, staying = read(file), read(file)
    start = asyncio.create_task(anext(going))
    there = asyncio.create_task(anext(staying))
    while not pieces._pieces:
        await asyncio.sleep(0)
    for _ in range(2):
        start.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([start])
    del start, going
    gc.collect()
    may.set()
    assert await there + b"".join([piece async for piece in staying]) == file.read_bytes()


def test_a_file_is_closed_with_the_last_one_who_has_it(file: Path) -> None:
    opened = pieces.Opened(file)
    descriptor = opened.descriptor
    assert descriptor is not None
    assert opened.piece(SIZE - 5) == file.read_bytes()[-5:]
    del opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(FileNotFoundError):
        pieces.Opened(file.with_name("other"))


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
    monkeypatch.setattr(protocol, "_STILL_S", 0.05)
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(said)
        assert broke.wait(60)
