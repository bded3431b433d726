"""Three servers for a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.postgres.process import PostgresProcess
from tests.integration.servers.trio import Trio


@pytest.fixture
def trio(tmp_path: Path, postgres: PostgresProcess, free_port: Callable[[], int]) -> Iterator[Trio]:
    made = Trio(tmp_path, postgres, free_port)
    yield made
    made.end()
