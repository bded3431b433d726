"""The examples of kinds that no other test runs, on the fleet of the others."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.integration.kinds.conftest import Bench

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "workflows"


def test_the_example_of_vectors_counts_them(bench: Bench) -> None:
    ids = bench.submit(EXAMPLES / "embedding.yaml")
    (item,) = bench.result(ids["report"])["items"]
    assert item["output"] == "2 texts, 192 numbers each"
    assert "vectors.parquet" in bench.files(ids["embed"])


def test_the_example_of_a_whole_training_trains(bench: Bench) -> None:
    few = {"max_steps": 4, "eval_steps": 2, "save_steps": 2, "max_seq_length": 128}
    changes: dict[str, Any] = {f"training.{name}": value for name, value in few.items()}
    ids = bench.submit(EXAMPLES.parent / "sft.yaml", **changes, **{"data.max_samples": 40})
    (task_id,) = ids.values()
    assert bench.result(task_id)["steps"] == 4
    assert "final_model/model.safetensors" in bench.files(task_id)
