"""What the acceptance tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet

PATIENCE_S = 300.0
ENVIRONMENT = {
    "ENABLE_ELASTIC_SCALING": "false",
    "HF_HUB_OFFLINE": "1",
    "LOG_FILE": "",
    "OMP_NUM_THREADS": "1",
    "TUNEFLEET_JOB_SLOTS": "1",
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server and a worker with one slot, for all tests that harm neither: to start them takes as long as a training.

    A file whose tests need another one has a fixture of this name. What a test finds there may be another's: it looks
    for what belongs to tasks of its own.
    """
    required("trl")
    data = tmp_path_factory.mktemp("fleet")
    with LocalFleet(data, port=free_port(), environment=ENVIRONMENT, save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


@pytest.fixture(scope="module")
def fleet_of_two(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server and two workers with one slot each, as a federation needs them, for the tests of a file."""
    required("trl")
    data = tmp_path_factory.mktemp("two")
    with LocalFleet(data, port=free_port(), workers=2, environment=ENVIRONMENT, save_client=False) as made:
        yield made
