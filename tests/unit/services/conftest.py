"""The fixture that every test of the services starts from."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.services.lab import FakeClock, Lab
from tunefleet.services import keys
from tunefleet.services.core import Clock, open_core
from tunefleet.settings import ServerSettings


@pytest.fixture(scope="session")
def fresh_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with its tables and first keys; made once, because a migration takes longer than a test."""
    data = tmp_path_factory.mktemp("fresh") / "data"
    core = open_core(ServerSettings(data=data, synchronous="NORMAL"))
    asyncio.run(keys.ensure_first(core))
    core.close()
    return data


@pytest.fixture
async def lab(fresh_data: Path, tmp_path: Path) -> AsyncIterator[Lab]:
    data = tmp_path / "data"
    shutil.copytree(fresh_data, data)
    clock = FakeClock()
    core = open_core(
        ServerSettings(data=data, synchronous="NORMAL"), clock=Clock(lambda: clock.wall, lambda: clock.monotonic)
    )
    try:
        admin = await keys.authenticate(core, (data / "keys" / "admin.key").read_text().strip())
        worker_key = await keys.authenticate(core, (data / "keys" / "worker.key").read_text().strip())
        yield Lab(core, clock, admin, worker_key)
    finally:
        core.close()
