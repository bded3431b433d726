"""The endpoint folder: made, found, withdrawn, and never outside its place."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tunefleet.schemas.control import Endpoint
from tunefleet.trainer_control import process_identity
from tunefleet.trainer_control.control.discovery import EndpointFolder, list_endpoints, safe_job_id


@pytest.mark.parametrize("job_id", ["../elsewhere", "/tmp/x", "a/b", "", ".", "..", "-x", "a\n", "x" * 129])
def test_an_id_that_could_leave_the_folder_is_refused(tmp_path: Path, job_id: str) -> None:
    with pytest.raises(ValueError, match="cannot be a job id"):
        EndpointFolder(tmp_path, job_id)


def test_an_ordinary_id_is_taken() -> None:
    assert safe_job_id("task-0123456789ab") == "task-0123456789ab"


def test_the_endpoint_is_for_its_owner_alone_and_names_the_process_exactly(tmp_path: Path) -> None:
    job_folder = tmp_path / "job"
    job_folder.mkdir()
    endpoint = EndpointFolder(tmp_path / "jobs", "task-1", job_folder)
    endpoint.publish(host="localhost", port=1234, token="secret")
    file = endpoint.path / "endpoint.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = Endpoint.model_validate_json(file.read_text())
    assert (found.job_id, found.port, found.pid, found.token) == ("task-1", 1234, os.getpid(), "secret")
    assert found.process_started_at == process_identity.process_started_at(os.getpid())
    assert found.boot_id == process_identity.boot_id()
    assert (endpoint.path / "job").resolve() == job_folder
    endpoint.publish(host="localhost", port=1235, token=None)
    assert Endpoint.model_validate_json(file.read_text()).port == 1235


def test_the_list_shows_no_token_and_the_newest_first(tmp_path: Path) -> None:
    for name, at in (("old", 1.0), ("new", 2.0)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "endpoint.json").write_text(json.dumps({"job_id": name, "started_at": at, "token": "secret"}))
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "endpoint.json").write_text("{")
    found = list_endpoints(tmp_path)
    assert [endpoint["job_id"] for endpoint in found] == ["new", "old"]
    assert all("token" not in endpoint for endpoint in found)


def test_withdrawing_removes_what_is_ours_and_leaves_another_process_alone(tmp_path: Path) -> None:
    endpoint = EndpointFolder(tmp_path, "task-1")
    endpoint.withdraw()
    endpoint.publish(host="localhost", port=1, token=None)
    endpoint.withdraw()
    assert not endpoint.path.exists()
    endpoint.publish(host="localhost", port=1, token=None)
    file = endpoint.path / "endpoint.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "pid": os.getpid() + 1}))
    endpoint.withdraw()
    assert file.exists()


def test_a_folder_with_somebody_elses_files_stays(tmp_path: Path) -> None:
    endpoint = EndpointFolder(tmp_path, "task-1")
    endpoint.publish(host="localhost", port=1, token=None)
    (endpoint.path / "notes.txt").write_text("mine")
    endpoint.withdraw()
    assert [path.name for path in endpoint.path.iterdir()] == ["notes.txt"]
