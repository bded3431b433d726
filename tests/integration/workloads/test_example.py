"""The shipped example, at a tenth of its length: its held-out loss falls, whatever the seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.libraries import required
from tunefleet.spec import dump_task_spec, parse_workflow
from tunefleet.trainer_control import session
from tunefleet.workloads import assets, entrypoint

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.proof]


@pytest.mark.parametrize("seed", [0, pytest.param(1)])
def test_the_loss_falls_by_a_nat_within_eight_steps(seed: int, tmp_path: Path) -> None:
    spec = dump_task_spec(parse_workflow(assets.example("lora_sft").read_text()).tasks[0].spec)
    assert spec["training"]["max_steps"] >= 80
    spec["training"] |= {"seed": seed, "max_steps": 8, "batch_size": 4, "warmup_steps": 1, "max_seq_length": 128}
    spec["data"]["eval"]["max_samples"] = 24
    spec.pop("evaluate")
    session._sessions.clear()  # each training is a process of its own elsewhere
    job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": "l", "kind": "lora_sft", "name": "n", "spec": spec}
    (tmp_path / "job.json").write_text(json.dumps({**job, "program": "tunefleet.workloads.training:main"}))
    assert entrypoint.main(tmp_path) == 0
    held_out = json.loads((tmp_path / "responses.json").read_text())["held_out"]
    assert held_out["fall"] > 1.0
