"""Sites that meet in a Redis of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Site


@pytest.fixture
def site(tmp_path: Path, redis_server: Callable[..., RedisProcess]) -> Iterator[Callable[..., Site]]:
    """Start a Redis, a server beside it, and workers as wanted."""
    made: list[Site] = []

    def start(redis: RedisProcess, url: str | None = None, **settings: Any) -> Site:
        made.append(Site(tmp_path / f"site-{len(made)}", url or redis.url, **settings))
        return made[-1]

    yield start
    for each in made:
        each.close()
