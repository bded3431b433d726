"""A server that may tell the machine's own addresses, a receiver of messages and a mail server."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.fakes.receiver import Receiver, receiving
from tests.fakes.smtp import FakeMailServer, mail_server
from tests.integration.notify.told import opened
from tests.unit.orchestrator.conftest import fresh_data
from tests.unit.orchestrator.lab import FakeClock, Lab

__all__ = ["fresh_data"]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def mail() -> Iterator[FakeMailServer]:
    with mail_server() as server:
        yield server


@pytest.fixture
def data(fresh_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fresh_data, tmp_path / "data"))


@pytest.fixture
async def lab(data: Path, mail: FakeMailServer) -> AsyncIterator[Lab]:
    url = SecretStr(f"smtp://bot:pass%40word@127.0.0.1:{mail.port}")
    async with opened(data, FakeClock(), smtp_url=url, smtp_from="Fleet <fleet@example.org>") as lab:
        yield lab
