"""Real Ray clusters for the tests of this folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.ray.cluster import PYTHON, RayCluster


@pytest.fixture(scope="module")
def ray_cluster(missing: Callable[[str], None], free_port: Callable[[], int]) -> Iterator[Callable[..., RayCluster]]:
    """Start clusters, each with a head of its own; the options are those of `RayCluster`."""
    if not PYTHON.exists():
        missing("Ray (scripts/environments.sh heavy)")
    started: list[RayCluster] = []
    with tempfile.TemporaryDirectory(prefix="tf-ray-", ignore_cleanup_errors=True) as folder:

        def start(*, autoscaled: bool = False) -> RayCluster:
            place = Path(folder, str(len(started)))
            place.mkdir()
            started.append(RayCluster(place, free_port, autoscaled=autoscaled))
            return started[-1].start()

        yield start
        for each in started:
            each.stop()
