"""The adapter against a real Slurm: nodes, reasons, signals, and that nothing stays held."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.clusters.cluster_contract import ClusterContract
from tests.integration.slurm.cluster import SlurmCluster
from tunefleet.integrations.clusters import ClusterJobState
from tunefleet.integrations.clusters.slurm import Slurm

pytestmark = [pytest.mark.proof, pytest.mark.timeout(120)]


@pytest.fixture
def cluster(slurm: SlurmCluster, tmp_path: Path) -> Iterator[Slurm]:
    # Its nodes have two cores: one job takes a whole node.
    yield Slurm(tmp_path / "logs", environment=slurm.environment, extra=("--exclusive",))
    deadline = time.monotonic() + 20
    while slurm.busy():
        assert time.monotonic() < deadline, slurm.call("squeue")
        time.sleep(0.2)


class TestSlurm(ClusterContract):
    def waits_for_room(self, seen: ClusterJobState) -> bool:
        return (seen.stage, seen.reason) == ("waiting", "pending (Resources)")
