"""What the tests of the services start from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.orchestrator.lab import TRAIN, FakeWorker, Lab, open_lab
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.schemas.worker_link import Offer
from tunefleet.settings import ServerSettings
from tunefleet.spec.expressions import result_keys
from tunefleet.spec.expressions.result_keys import RESULT_KEYS


@pytest.fixture(scope="session")
def fresh_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with its tables and first keys; made once, because a migration takes longer than a test."""
    data = tmp_path_factory.mktemp("fresh") / "data"
    core = open_context(ServerSettings(data=data, synchronous="NORMAL"))
    asyncio.run(api_keys.ensure_first(core))
    core.close()
    return data


@pytest.fixture
async def lab(fresh_data: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    async with open_lab(fresh_data, tmp_path / "data") as lab:
        yield lab


@pytest.fixture
async def running(lab: Lab) -> tuple[FakeWorker, Offer]:
    """A worker with a training that may be tried five times."""
    worker = await lab.online()
    await lab.submit(TRAIN + "  retry: {max_attempts: 5, backoff_s: 0}\n")
    return worker, await worker.start()


@pytest.fixture(autouse=True)
def echo_that_leaves_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """The echo tasks of these tests end with whatever result a test gives them."""
    monkeypatch.setattr(result_keys, "RESULT_KEYS", {k: v for k, v in RESULT_KEYS.items() if k != "echo"})
