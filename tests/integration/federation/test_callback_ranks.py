"""`FederatedCallback` under torchrun: rank 0 talks, and both ranks stay the same to the bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.federation import FEDERATION, TOKEN, Double, serving


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global load, save, torch
    pytest.importorskip("peft")

    import torch
    from safetensors.torch import load, save


pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "program" / "federated_rank.py"
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture
def double() -> Iterator[Double]:
    with serving() as double:
        yield double


def run(double: Double, folder: Path, repository: Path, **options: Any) -> tuple[int, str]:
    """Train in two processes; returns how they ended, and what they said."""
    folder.mkdir(exist_ok=True)
    found = os.pathsep.join([str(repository / "src"), str(repository)])
    environment = {**os.environ, "PYTHONPATH": found, "CUDA_VISIBLE_DEVICES": ""}
    given = json.dumps({"sync_every_steps": 4, **options})
    command = [*LAUNCHER, str(PROGRAM), str(folder), double.url, FEDERATION, TOKEN, given]
    log = folder / "log"
    with log.open("wb") as out:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=out, stderr=out, timeout=240, check=False)
    print(log.read_text())
    return done.returncode, log.read_text()


def noted(folder: Path, name: str) -> list[Any]:
    """Return what both ranks have left."""
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(2)]


def publish_shifted(double: Double, update: dict[str, Any]) -> None:
    if not double.versions:
        values = {name: 0.9 * tensor + 0.003 for name, tensor in load(double.file_of(update)).items()}
        double.publish(save(values), update["config"])


def test_two_ranks_take_a_version_at_one_step_and_count_their_rows_together(
    double: Double, tmp_path: Path, repository: Path
) -> None:
    double.on_update = publish_shifted
    code, _ = run(double, tmp_path, repository, optimizer_state="reset", mu=0.01)
    assert code == 0
    digests, versions, held = (noted(tmp_path, name) for name in ("digests", "versions", "held"))
    assert digests[0] == digests[1]
    assert len(digests[0]) == 20
    assert versions[0] == versions[1]
    assert set(versions[0].values()) == {0, 1}
    assert held == [True, True]
    assert [step for step, _ in double.examples] == [4, 8, 12, 16, 20]
    replaced = sum(version == 0 for version in versions[0].values()) + 1 - 4
    assert replaced in (1, 2)
    # The version has replaced what came of the steps since the first update.
    counted = sum(examples for _, examples in double.examples)
    assert counted == sum(noted(tmp_path, "rows")) * (20 - replaced) // 20
    assert list(double.members) == ["two-ranks"]
    last = {name: torch.tensor(values) for name, values in noted(tmp_path, "last")[0].items()}
    uploaded = load(double.file_of(double.updates[-1]))
    assert all(torch.equal(uploaded[name], value) for name, value in last.items())


def test_a_crash_of_both_ranks_counts_no_row_twice(double: Double, tmp_path: Path, repository: Path) -> None:
    assert run(double, tmp_path / "straight", repository, sync_every_steps=8, straight=True)[0] == 0
    expected = [(update["step"], update["num_examples"], update["sha256"]) for update in double.updates]
    assert [step for step, *_ in expected] == [8, 16, 20]
    double.updates.clear()
    crashed = tmp_path / "crashed"
    code, _ = run(double, crashed, repository, sync_every_steps=8, crash_at=15, straight=True)
    assert code != 0
    assert [step for step, _ in double.examples] == [8]
    assert run(double, crashed, repository, sync_every_steps=8, resume=True, straight=True)[0] == 0
    assert [(update["step"], update["num_examples"], update["sha256"]) for update in double.updates] == expected


def test_a_refusal_ends_both_ranks(double: Double, tmp_path: Path, repository: Path) -> None:
    double.refuse_updates = (422, "adapter_refused", "The tensor lora_B is not finite.")
    code, said = run(double, tmp_path, repository)
    assert code != 0
    assert "The tensor lora_B is not finite." in said
    assert not list(tmp_path.glob("digests-*"))
