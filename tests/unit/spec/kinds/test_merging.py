"""`merge`: which options go together, and what a merge leaves and fetches."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.errors import SpecError
from tunefleet.spec import MergeTaskSpec, fetches, load_task_spec, local_paths

ONE = {"source": {"identifier": "m"}, "adapters": [{"taskId": "task-1"}]}
TWO = {"source": {"identifier": "m"}, "adapters": [{"taskId": "task-1"}, {"path": "./b", "weight": -0.5}]}


@pytest.mark.parametrize(
    ("model", "merge", "path", "message"),
    [
        (ONE, {"into": "adapter"}, "model.adapters", "needs at least two adapters with into: adapter"),
        ({**ONE, "adapters": []}, {}, "model.adapters", "is empty, so there is nothing to merge"),
        (ONE, {"method": "ties"}, "merge.method", "no effect with into: base"),
        (TWO, {"into": "adapter", "method": "cat", "density": 0.5}, "merge.density", "method ties or"),
        (TWO, {"into": "adapter", "dtype": "bf16"}, "merge.dtype", "no effect with into: adapter"),
        (TWO, {"into": "adapter", "svd_rank": 4}, "merge.svd_rank", "method svd"),
        (TWO, {"into": "adapter", "gguf": {}}, "merge.gguf", "needs a full model"),
        (ONE, {"gguf": {"name": "../x.gguf"}}, "merge.gguf.name", "is not a valid GGUF file name"),
        ({**ONE, "adapters": [{"path": "./a", "weight": 0}]}, {}, "model.adapters.0.weight", "has no effect"),
        ({**ONE, "adapters": [{"path": "./a", "weight": 1, "scale": 2}]}, {}, "model.adapters.0.scale", "alias of"),
    ],
    ids=["one", "none", "method", "density", "dtype", "rank", "gguf", "name", "zero", "both"],
)  # fmt: skip
def test_what_contradicts_is_named(model: dict[str, Any], merge: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_task_spec({"taskType": "merge", "model": model, "merge": merge})
    (fault,) = caught.value.faults
    assert fault.path == f"spec.{path}"
    assert message in fault.message


def test_what_it_leaves_fetches_and_sends() -> None:
    spec = load_task_spec({"taskType": "merge", "model": TWO, "merge": {"gguf": {"type": "f16"}}})
    assert isinstance(spec, MergeTaskSpec)
    assert (spec.product, spec.gguf_name, spec.devices.count) == ("final_model", "model-f16.gguf", 0)
    assert [each.share for each in spec.model.adapters] == [1.0, -0.5]
    assert [(each.pointer, each.task_id) for each in fetches(spec)] == [("model.adapters.0", "task-1")]
    assert [each.pointer for each in local_paths(spec)] == ["model.source.identifier", "model.adapters.1.path"]
