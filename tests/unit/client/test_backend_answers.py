"""What a backend answers a poll: what cannot be read is named by its field, and what the original leaves out may be."""

from __future__ import annotations

from typing import Any

import pytest

from tunefleet.client.backend import _read
from tunefleet.errors import UnreachableError
from tunefleet.schemas.training_protocol.training import PolledJob

JOB: dict[str, Any] = {"id": "job-1", "model_name": "m", "dataset_path": "rows.jsonl", "config": {}}


def test_a_job_needs_no_time_of_creation() -> None:
    assert _read(PolledJob, JOB).created_at is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"created_at": "yesterday"}, "created_at must"),
        ({"config": "many"}, "config must"),
        ({"id": None}, "id must"),
        ({"total_steps": "many"}, "total_steps must"),
    ],
)
def test_a_field_that_cannot_be_read_is_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(UnreachableError, match=rf"is not a valid PolledJob \(.*{field}"):
        _read(PolledJob, {**JOB, **change})


def test_an_answer_that_is_no_object_is_said_to_be_none() -> None:
    with pytest.raises(UnreachableError, match=r"\(it must be a mapping"):
        _read(PolledJob, ["job"])
