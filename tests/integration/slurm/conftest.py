"""A real Slurm for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.integration.slurm.cluster import SlurmCluster, lacking


@pytest.fixture(scope="package")
def slurm(
    as_root: None,
    missing: Callable[[str], None],
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SlurmCluster]:
    """Two nodes; every test leaves them free."""
    absent = lacking()
    if absent is not None:
        missing(absent)
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm"), free_port)
    try:
        yield cluster.start()
    finally:
        cluster.stop()
