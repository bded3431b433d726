"""A token goes only to the process that wrote the endpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tunefleet.runtime.control import find_endpoint, withdraw_endpoint
from tunefleet.trainer_control.control.discovery import EndpointFolder


@pytest.fixture
def published(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    EndpointFolder(tmp_path / "jobs", "task-1", tmp_path / "results").publish(host="localhost", port=1, token="secret")
    return tmp_path / "jobs"


def change(endpoints: Path, **fields: Any) -> None:
    file = endpoints / "task-1" / "endpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def test_the_process_that_wrote_it_is_found(published: Path) -> None:
    endpoint = find_endpoint(published, "task-1")
    assert endpoint is not None
    assert (endpoint.pid, endpoint.token) == (os.getpid(), "secret")


@pytest.mark.parametrize(
    "fields",
    [
        {"process_started_at": 1.0},
        {"process_started_at": None},
        {"pid": 2**22 + 1},
        {"hostname": "elsewhere"},
        {"boot_id": "another"},
        {"job_id": "task-2"},
        {"port": "none"},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_recycled_pid_another_boot_or_another_machine_is_not_trusted(published: Path, fields: dict[str, Any]) -> None:
    change(published, **fields)
    assert find_endpoint(published, "task-1") is None


def test_without_an_endpoint_nobody_is_found(tmp_path: Path) -> None:
    assert find_endpoint(tmp_path, "task-1") is None


def test_what_a_killed_trainer_left_is_removed(published: Path, tmp_path: Path) -> None:
    withdraw_endpoint(published, "task-1", tmp_path / "results")
    assert (published / "task-1").exists()  # its process lives
    change(published, process_started_at=1.0)
    withdraw_endpoint(published, "task-1", tmp_path / "elsewhere")
    assert (published / "task-1").exists()  # it is another folder's
    withdraw_endpoint(published, "task-1", tmp_path / "results")
    assert not (published / "task-1").exists()
    withdraw_endpoint(published, "task-1", tmp_path / "results")
