"""What ASHA saves: the same candidates as a grid, in a fraction of its steps, with nearly the same best eval loss."""

from __future__ import annotations

import pytest

from tests.integration.sweeps.documents import document
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.sweep import SweepDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(1200)]

STEPS = 81
PARAMETERS = "{training.learning_rate: [1e-5, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2], lora.r: [2, 8]}"


def test_asha_finds_nearly_the_grids_best_in_two_fifths_of_its_steps(fleet: LocalFleet) -> None:
    def run(pruner: str) -> SweepDetail:
        sweep = f"{{sampler: grid, parallel: 2, {pruner} parameters: {PARAMETERS}}}"
        with Client(fleet.url, fleet.key, patience_s=60) as client:
            made = client.sweep(document(sweep, steps=STEPS, eval_steps=9, rows=1024, eval_rows=64))
            return client.sweeps.wait(made.id, timeout_s=600)

    grid, asha = run(""), run("pruner: {name: asha, reduction_factor: 3},")
    assert (grid.status, asha.status) == ("completed", "completed")
    assert grid.best is not None
    assert asha.best is not None
    assert grid.steps == 12 * STEPS
    loss, other = grid.best.value or 0.0, asha.best.value or 0.0
    print(f"grid: eval loss {loss:.4f} in {grid.steps} steps, {grid.best.parameters}")
    print(f"asha: eval loss {other:.4f} in {asha.steps} steps, {asha.best.parameters}, {asha.states}")
    assert other <= 1.05 * loss
    assert asha.steps <= 0.4 * grid.steps
