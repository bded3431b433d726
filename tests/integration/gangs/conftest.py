"""Two machines for the tests of a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.gangs.cluster import NODES, Cluster, cluster
from tests.integration.nat.namespaces import available
from tests.libraries import required


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory, missing: Callable[[str], None]) -> Iterator[Cluster]:
    """A server and two workers that are up."""
    required("trl")
    if not available():
        missing("The right to make network namespaces (root, ip, tc)")
    with cluster(tmp_path_factory.mktemp("gang")) as made:
        for name in NODES:
            made.start_worker(name)
        made.await_workers()
        yield made
