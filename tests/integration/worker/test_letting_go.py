"""What a worker fetches from an address is let go, connection and all, once nobody wants it any more."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.fakes.dripping import dripping
from tests.unit.worker.fakes import Running, World
from tunefleet.worker.transfers import Transfers

TRAIN = {"taskType": "lora_sft", "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}}}


def _threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name == "fetch"}


@pytest.mark.parametrize("wish", ["cancel", "pause"])
@pytest.mark.parametrize("what", ["nothing", "a header", "a body"])
def test_what_is_fetched_from_an_address_is_let_go_at_once(tmp_path: Path, wish: str, what: str) -> None:
    world = World(tmp_path / "results")
    before = _threads()
    with dripping(what) as host:
        spec = {**TRAIN, "data": {"path": host.url, "prompt_column": "a", "response_column": "b"}}
        token = world.server.offer(spec=spec)
        with Running(world, transfers=Transfers(url_allow=("127.0.0.1",))):
            assert host.begun.wait(10)
            world.server.want(token, wish)
            world.server.finished(token)
            assert host.left.wait(10), "the connection is closed"
            for each in _threads() - before:
                each.join(10)
                assert not each.is_alive()
    assert host.asked == 1
