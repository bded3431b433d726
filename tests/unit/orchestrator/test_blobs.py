"""Which store the settings open, and that nobody pays for S3 who does not use it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tunefleet.artifacts import FolderStore, NoRoomError
from tunefleet.artifacts.remote import store_error
from tunefleet.errors import MachineError, TunefleetError, UnreachableError
from tunefleet.orchestrator.storage.blob_stores import open_blobs
from tunefleet.settings import ServerSettings, load


def test_without_a_setting_files_lie_in_the_data_folder(tmp_path: Path) -> None:
    store = open_blobs(load(ServerSettings, data=tmp_path))
    assert isinstance(store, FolderStore)
    assert store.root == tmp_path / "artifacts"


@pytest.mark.parametrize(
    "named", ["s3://", "s3://UPPER/x", "bucket/x", "s3://b/x?y", "gs://", "az:bucket", "file://host/x"]
)
def test_what_names_no_bucket_is_refused(tmp_path: Path, named: str) -> None:
    with pytest.raises(MachineError, match=r"artifacts|TUNEFLEET_ARTIFACTS"):
        load(ServerSettings, data=tmp_path, artifacts=named)


@pytest.mark.parametrize(
    ("named", "lacking"),
    [("gs://bucket", "GOOGLE_APPLICATION_CREDENTIALS"), ("az://container", "AZURE_STORAGE_CONNECTION_STRING")],
)
def test_a_cloud_without_a_key_says_which_variable_it_needs(tmp_path: Path, named: str, lacking: str) -> None:
    with pytest.raises(MachineError, match=f"{named} needs {lacking}"):
        open_blobs(load(ServerSettings, data=tmp_path, artifacts=named))


@pytest.mark.parametrize(
    ("said", "status", "passes", "kind", "way_out"),
    [
        ("QuotaExceeded", 403, False, NoRoomError, "Raise its quota"),
        ("whatever", 507, False, NoRoomError, "Interrupted uploads are kept"),
        ("SlowDown", 503, False, UnreachableError, "try again later"),
        ("429", 429, False, UnreachableError, "Check X"),
        ("ConnectTimeout", 0, True, UnreachableError, "Check X"),
        ("ExpiredToken", 400, False, MachineError, "update Y"),
        ("RefreshError", 0, False, MachineError, "expired"),
        ("RequestTimeTooSkewed", 403, False, MachineError, "synchronize them with NTP"),
        ("NoSuchBucket", 404, False, MachineError, "Create it"),
        ("MethodNotAllowed", 405, False, MachineError, "TUNEFLEET_ARTIFACTS, Y"),
    ],
)
def test_what_a_store_says_becomes_an_error_with_a_way_out(
    said: str, status: int, passes: bool, kind: type[TunefleetError], way_out: str
) -> None:
    error = store_error("s3://b", said, status, "private", passes=passes, check="X", variables="Y")
    assert type(error) is kind
    assert "s3://b" in error.message
    assert said in error.message
    assert re.search(way_out, error.hint or "")
    assert (error.detail, "private" in str(error)) == ("private", False)
