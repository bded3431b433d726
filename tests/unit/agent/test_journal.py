"""What an agent makes of a journal in which something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tunefleet.agent.jobs.journal import JournalReader
from tunefleet.schemas.job_folder import JobFolder

POINT = {"type": "metric", "at": 1.0, "step": 7, "values": {"loss": 0.5}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "metric", "at": 1.0, "values": {"loss": 1.0}},
        {"type": "metric", "at": 1e300, "step": 1, "values": {"loss": 1.0}},
        {"type": "metric", "at": 1.0, "step": "x", "values": {"loss": 1.0}},
        {"type": "metric", "at": 1.0, "step": 1, "values": [1.0]},
        {"type": "checkpoint", "at": 1.0},
        {"type": "launch", "from_step": "x"},
        {"type": "progress", "phase": "training", "gpu_bytes": "a", "max_steps": [], "tokens_per_s": "b"},
        [],
        7,
    ],
)
def test_a_record_that_cannot_be_read_hides_none_behind_it(tmp_path: Path, wrong: Any) -> None:
    job = JobFolder(tmp_path)
    job.journal_dir.mkdir()
    (job.journal_dir / "l.jsonl").write_text(f"{json.dumps(wrong)}\nnonsense\n{json.dumps(POINT)}\n")
    reader = JournalReader(job, of_tokens=True)
    assert [(point.step, point.train_loss) for point in reader.look().points] == [(7, 0.5)]
    assert len(reader.look().points) == 1
