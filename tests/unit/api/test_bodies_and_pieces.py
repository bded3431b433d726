"""Files that several send at the same time are read once, and bodies reach the app as they were sent."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import pytest

from tunefleet.api import shared_reads

SIZE = 2 * shared_reads.PIECE_BYTES + 5


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(os.urandom(SIZE))
    return tmp_path / "file"


def read(file: Path) -> AsyncGenerator[bytes, None]:
    return shared_reads.read(file, shared_reads.SharedFile(file), SIZE)


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
    assert sorted(reads) == [0, shared_reads.PIECE_BYTES, 2 * shared_reads.PIECE_BYTES]


async def test_what_nobody_wants_any_more_is_not_kept(file: Path, reads: list[int]) -> None:
    for _ in range(2):
        assert b"".join([piece async for piece in read(file)]) == file.read_bytes()
    assert len(reads) == 6


async def test_one_who_gives_up_takes_nothing_from_the_others(file: Path) -> None:
    going, staying = read(file), read(file)
    start = asyncio.create_task(anext(going))
    there = asyncio.create_task(anext(staying))
    while not shared_reads._pieces:
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
    while not shared_reads._pieces:
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
    opened = shared_reads.SharedFile(file)
    descriptor = opened.descriptor
    assert descriptor is not None
    assert opened.piece(SIZE - 5) == file.read_bytes()[-5:]
    del opened
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
    with pytest.raises(FileNotFoundError):
        shared_reads.SharedFile(file.with_name("other"))
