"""Combinations with streams, with answers during the training, and with checkpoints in the background."""

from __future__ import annotations

import pytest

from tests.unit.spec.documents import training
from tunefleet.errors import SpecError
from tunefleet.spec import parse_workflow

STREAM = "{path: ./rows.jsonl, streaming: true}"
HELD_OUT = "{path: ./rows.jsonl, eval: {fraction: 0.1}}"


@pytest.mark.parametrize(
    ("blocks", "path", "part"),
    [
        ({"data": STREAM}, "training.max_steps", "is required"),
        (
            {"data": STREAM, "training": "{max_steps: 9, save_strategy: epoch}"},
            "training.save_strategy",
            "epochs are not supported",
        ),
        ({"data": STREAM, "training": "{max_steps: 9, dataset_num_proc: 2}"}, "training.dataset_num_proc", "no effect"),
        (
            {"data": STREAM, "training": "{max_steps: 9, dataloader_num_workers: 2}"},
            "training.dataloader_num_workers",
            "one reader",
        ),
        (
            {"data": "{path: ./r.jsonl, streaming: true, eval: {fraction: 0.1}}", "training": "{max_steps: 9}"},
            "data.eval.fraction",
            "is not supported with streaming",
        ),
        (
            {"data": "{path: ./r.jsonl, streaming: true, split: 'train[:9]'}", "training": "{max_steps: 9}"},
            "data.split",
            "slices are not supported with streaming",
        ),
        ({"data": "{prompts: [a], streaming: true}", "training": "{max_steps: 9}"}, "data.streaming", "has no effect"),
        ({"predictions": "{sample_count: 2}"}, "predictions", "requires an eval set"),
        ({"predictions": "{}", "data": HELD_OUT}, "predictions", "requires evaluations during training"),
        (
            {"checkpoint": "{asynchronous: true}", "resources": "{processes: 2}"},
            "checkpoint.asynchronous",
            "single-process",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_a_way_out(blocks: dict[str, str], path: str, part: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_workflow(training(**blocks), filename="f.yaml")
    found = {fault.path: fault for fault in caught.value.faults}
    fault = found[f"spec.{path}"]
    assert part in fault.message
    assert fault.hint


@pytest.mark.parametrize(
    "blocks",
    [
        {"data": "{path: ./r.jsonl, streaming: true, eval: {path: ./e.jsonl}}", "training": "{max_steps: 9}"},
        {"data": HELD_OUT, "predictions": "{sample_frequency: epoch}"},
        {"data": HELD_OUT, "predictions": "{sample_frequency: 2}", "training": "{eval_strategy: epoch}"},
        {"predictions": "{enabled: false}"},
        {"checkpoint": "{asynchronous: true, compress: zstd}"},
    ],
)
def test_what_goes_together_is_taken(blocks: dict[str, str]) -> None:
    assert parse_workflow(training(**blocks), filename="f.yaml").tasks
