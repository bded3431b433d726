"""Transfers are held to a speed, all of a process together; by a clock that the test moves."""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tunefleet.client.call import Call, nothing
from tunefleet.client.connection import Connection
from tunefleet.client.throttle import Throttle, Ticks
from tunefleet.client.transport import Transport
from tunefleet.schemas.worker_guide import ResultEnvelope

MB = 1_000_000


class Clock:
    """Time that passes when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.longest = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.longest = max(self.longest, seconds)

    @property
    def ticks(self) -> Ticks:
        return Ticks(lambda: self.now, self.sleep)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def upload(throttle: Throttle, data: bytes, tmp_path: Path) -> None:
    def take(request: httpx.Request) -> httpx.Response:
        assert request.read() == data
        return httpx.Response(200)

    transport = Transport(Connection("http://server"), network=httpx.MockTransport(take), throttle=throttle)
    transport.run(Call("PUT", "/x", nothing, content=lambda: iter([data])))


def download(throttle: Throttle, data: bytes, tmp_path: Path) -> None:
    network = httpx.MockTransport(lambda _: httpx.Response(200, content=data))
    sink = io.BytesIO()
    Transport(Connection("http://server"), network=network, throttle=throttle).run(
        Call("GET", "/x", nothing, sink=sink)
    )
    assert sink.getvalue() == data


@pytest.mark.parametrize("move", [upload, download])
def test_ten_megabytes_at_one_a_second_take_ten_seconds(
    clock: Clock, tmp_path: Path, move: Callable[[Throttle, bytes, Path], None]
) -> None:
    move(Throttle(1 * MB, ticks=clock.ticks), os.urandom(10 * MB), tmp_path)
    assert 9.0 <= clock.now - 100.0 <= 11.0
    assert clock.longest <= 0.5, "a slow line is a steady one"


def test_a_json_body_counts_too(clock: Clock) -> None:
    network = httpx.MockTransport(lambda _: httpx.Response(200))
    body = ResultEnvelope(task_id="task-1", result={"text": "x" * 5 * MB})
    throttle = Throttle(1 * MB, ticks=clock.ticks)
    Transport(Connection("http://server"), network=network, throttle=throttle).run(
        Call("POST", "/x", nothing, body=body)
    )
    assert 4.5 <= clock.now - 100.0 <= 5.5


def test_what_did_not_pass_while_nothing_was_sent_is_not_saved_up(clock: Clock) -> None:
    throttle = Throttle(1 * MB, ticks=clock.ticks)
    clock.now += 3600
    before = clock.now
    throttle.take(2 * MB)
    assert clock.now - before == pytest.approx(2.0)


def test_threads_share_the_line() -> None:
    """On the real clock: four threads together are held to the speed of one."""
    throttle = Throttle(1 * MB)
    began = time.monotonic()
    threads = [
        threading.Thread(target=lambda: [throttle.take(10_000) for _ in range(10)], daemon=True) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - began >= 0.39
