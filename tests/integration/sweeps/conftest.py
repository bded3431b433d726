"""What the tests of sweeps share: a server with two workers, and a workflow of a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet

ENVIRONMENT = {"ENABLE_ELASTIC_SCALING": "false", "HF_HUB_OFFLINE": "1", "LOG_FILE": "", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server and a worker; tests that kill the server have it restarted."""
    required("trl")
    required("optuna")
    data = tmp_path_factory.mktemp("sweeps")
    with LocalFleet(data, port=free_port(), environment=ENVIRONMENT, save_client=False) as made:
        made.await_workers(300)
        yield made
