"""Transfers from and to other hosts are held to a speed; by a clock that the test moves."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.worker.receiver import receiving
from tests.unit.client.test_throttle import MB, Clock
from tunefleet.client.external.download import Downloader
from tunefleet.client.external.result_delivery import HttpDelivery, Receiver
from tunefleet.client.throttle import Throttle
from tunefleet.schemas.worker_guide import ResultEnvelope


def foreign_download(throttle: Throttle, data: bytes, tmp_path: Path) -> None:
    with receiving() as host:
        host.files["/x"] = data
        path = Downloader(tmp_path, allowed=["127.0.0.1"], throttle=throttle).fetch(f"{host.url}/x")
        assert path.read_bytes() == data


def foreign_upload(throttle: Throttle, data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with receiving() as host:
        HttpDelivery(Receiver(host.url), allowed=["127.0.0.1"], throttle=throttle).file("task-1", tmp_path / "x")
        assert data in host.seen[0].body


def result(throttle: Throttle, data: bytes, tmp_path: Path) -> None:
    with receiving() as host:
        sent = ResultEnvelope(task_id="task-1", result={"text": "x" * len(data)})
        HttpDelivery(Receiver(host.url), allowed=["127.0.0.1"], throttle=throttle).result(sent)


@pytest.mark.parametrize("move", [foreign_download, foreign_upload, result])
def test_ten_megabytes_at_one_a_second_take_ten_seconds(
    tmp_path: Path, move: Callable[[Throttle, bytes, Path], None]
) -> None:
    clock = Clock()
    move(Throttle(1 * MB, ticks=clock.ticks), os.urandom(10 * MB), tmp_path)
    assert 9.0 <= clock.now - 100.0 <= 11.0
    assert move is result or clock.longest <= 0.5, "a slow line is a steady one"
