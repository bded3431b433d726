"""Files that several send at the same time are read once, and bodies reach the app as they were sent."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tunefleet.server import pieces
from tunefleet.server.protocol import Protocol

SIZE = 2 * pieces.PIECE_BYTES + 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(os.urandom(SIZE))
    return tmp_path / "file"


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
    first, second = pieces.read(file, SIZE), pieces.read(file, SIZE)
    got: tuple[list[bytes], list[bytes]] = ([], [])
    async for piece in first:
        got[0].append(piece)
        got[1].append(await anext(second))
    assert await anext(second, None) is None
    assert b"".join(got[0]) == b"".join(got[1]) == file.read_bytes()
    assert sorted(reads) == [0, pieces.PIECE_BYTES, 2 * pieces.PIECE_BYTES]


async def test_what_nobody_wants_any_more_is_not_kept(file: Path, reads: list[int]) -> None:
    for _ in range(2):
        assert b"".join([piece async for piece in pieces.read(file, SIZE)]) == file.read_bytes()
    assert len(reads) == 6


async def test_one_who_gives_up_takes_nothing_from_the_others(file: Path) -> None:
    going, staying = pieces.read(file, SIZE), pieces.read(file, SIZE)
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


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Say the digest of a body, and its length."""
    found = hashlib.sha256()
    size = 0
    async for piece in Request(scope, receive).stream():
        assert isinstance(piece, bytes)
        found.update(piece)
        size += len(piece)
    await PlainTextResponse(f"{size} {found.hexdigest()}")(scope, receive, send)


@pytest.fixture
def port() -> Iterator[int]:
    """Serve with the protocol."""
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
