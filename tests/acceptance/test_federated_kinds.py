"""Every kind of training that can be federated, as a real federation of two parts over two workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(600)]

STEPS, SYNC, BATCH = 4, 2, 2
PAIRS = {"path": "builtin:gsm8k-preferences", "max_samples": 16, "separator": "\n"}
SAMPLES = {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer", "max_samples": 16}


def document(kind: str, data: dict[str, Any], **more: Any) -> str:
    spec = {
        "taskType": kind,
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": data,
        "lora": {"r": 2, "alpha": 4, "target_modules": ["q_proj", "v_proj"]},
        "training": {
            "max_steps": STEPS,
            "batch_size": BATCH,
            "max_seq_length": 160,
            "learning_rate": 1e-3,
            "logging_steps": 1,
        },
        "federation": {"workers": 2, "sync_every_steps": SYNC},
        **more,
    }
    return yaml.safe_dump({"apiVersion": "tunefleet/v1", "metadata": {"name": kind.replace("_", "-")}, "spec": spec})


# A pair that KTO is given counts as two answers: a good one and a bad one.
@pytest.mark.parametrize(
    ("kind", "data", "ranks"),
    [
        ("orpo", PAIRS, 1),
        ("dpo", PAIRS, 1),
        ("kto", PAIRS, 1),
        ("lora_sft", SAMPLES, 2),
        ("kto", PAIRS, 2),
    ],
    ids=["orpo", "dpo", "kto", "sft on two ranks", "kto on two ranks"],
)
def test_two_parts_train_one_adapter(
    fleet_of_two: LocalFleet, tmp_path: Path, kind: str, data: dict[str, Any], ranks: int
) -> None:
    more = {} if ranks == 1 else {"resources": {"processes": ranks, "hardware": {"gpu": {"count": 0}}}}
    with Client(fleet_of_two.url, fleet_of_two.key, patience_s=60) as client:
        flow = client.workflows.wait(client.submit(document(kind, data, **more)).workflow.id, timeout_s=400)
        assert flow.status == "completed", [(task.name, task.error, task.why) for task in flow.tasks]
        whole = next(task for task in flow.tasks if "#" not in task.name)
        result = client.tasks.get(whole.id).result
        assert result is not None
        about = result["result"]["federation"]
        assert (about["status"], about["version"]) == ("completed", STEPS // SYNC)
        assert about["contributors"] == ["part-0", "part-1"]
        for number in range(1, about["version"] + 1):
            updates = client.federations.updates(about["id"], round=number).items
            assert [each.state for each in updates] == ["aggregated"] * 2
            assert {each.num_examples for each in updates} == {SYNC * BATCH * ranks}, "each row counts once"
            assert all(each.norm and each.losses.after is not None for each in updates)
        folder = client.tasks.fetch_output(whole.id, "final_lora", tmp_path / "adapter")
        assert (folder / "adapter_model.safetensors").stat().st_size > 1000
