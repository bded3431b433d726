"""Two ranks over NCCL, whose processors run ahead of their devices: needs a machine with two GPUs."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.ranks.conftest import PROGRAM_DIR, end, job
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor
from tunefleet.settings import inherited_environment
from tunefleet.trainer_control.checkpoints.manifest import list_complete


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    pytest.importorskip("torch")

    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


pytestmark = [
    pytest.mark.torch,
    pytest.mark.proof,
    pytest.mark.timeout(700),
]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    paths = f"{Path(__file__).parent}:{PROGRAM_DIR}"
    supervisor = Supervisor(
        tmp_path / "results",
        endpoints_dir=tmp_path / "home" / "jobs",
        warm=False,
        base_env={**inherited_environment(), "PYTHONPATH": paths},
    )
    yield supervisor
    supervisor.close()


@pytest.mark.parametrize("asked", [0, 1])
def test_ranks_that_run_ahead_of_their_devices_stop_at_the_same_step(supervisor: Supervisor, asked: int) -> None:
    handle = supervisor.launch(job("program_nccl:main", asked=asked, seed=random.random()))
    assert end(handle, 180).reason is TaskReason.FINISHED
    first, second = json.loads((handle.folder.root / "acted.json").read_text())
    assert first == second
    assert [name for _, name in first].count("save_checkpoint") == 10


@pytest.mark.parametrize("fsdp", [False, True])
def test_a_pause_over_nccl_is_exact(supervisor: Supervisor, fsdp: bool) -> None:
    train = {"do": "train", "max_steps": 40, "fsdp": fsdp, "full_determinism": True}
    first = supervisor.launch(
        job("rank_program:main", baseline=True, at=[random.randrange(3, 28), 1, "pause"], **train)
    )
    assert end(first, 300).reason is TaskReason.PAUSED
    assert len(list_complete(first.folder.checkpoints_dir)) == 1
    again = supervisor.launch(job("rank_program:main", attempt=2, baseline=False, **train))
    assert end(again, 300).reason is TaskReason.FINISHED
    bare, trained = ((again.folder.root / f"{name}.json").read_text() for name in ("bare", "trained"))
    assert trained == bare
