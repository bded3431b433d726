"""A process that runs alone gets the variables that a launcher would set, with a free port."""

from __future__ import annotations

import os

import pytest

from tests.libraries import required

required("torch")
pytestmark = pytest.mark.torch


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global deepspeed
    from tunefleet.workloads.training.model import deepspeed


def test_a_process_alone_gets_the_environment_that_a_launcher_would_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed.importlib.util, "find_spec", lambda name: object())
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    deepspeed.require()
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")
    monkeypatch.setenv("RANK", "1")
    deepspeed.require()
    assert os.environ["RANK"] == "1", "a rank keeps what torchrun has given it"
