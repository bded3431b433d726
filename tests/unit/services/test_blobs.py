"""Which store the settings open, and that nobody pays for S3 who does not use it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tunefleet.artifacts import FolderStore
from tunefleet.errors import MachineError
from tunefleet.services.blobs import open_blobs
from tunefleet.settings import ServerSettings, load


def test_without_a_setting_files_lie_in_the_data_folder(tmp_path: Path) -> None:
    store = open_blobs(load(ServerSettings, data=tmp_path))
    assert isinstance(store, FolderStore)
    assert store.root == tmp_path / "artifacts"


@pytest.mark.parametrize("named", ["s3://", "s3://UPPER/x", "bucket/x", "s3://b/x?y", "gs://bucket"])
def test_what_names_no_bucket_is_refused(tmp_path: Path, named: str) -> None:
    with pytest.raises(MachineError, match=r"artifacts|TUNEFLEET_ARTIFACTS"):
        load(ServerSettings, data=tmp_path, artifacts=named)


def test_a_server_without_a_bucket_does_not_import_boto3_and_one_with_it_says_when_it_lacks(tmp_path: Path) -> None:
    program = f"""
import sys
import tunefleet.server.app
from tunefleet.services.blobs import open_blobs
from tunefleet.settings import ServerSettings, load
open_blobs(load(ServerSettings, data={str(tmp_path)!r}))
assert not {{"boto3", "botocore"}} & set(sys.modules), "boto3 was imported"
sys.modules["boto3"] = None
try:
    open_blobs(load(ServerSettings, data={str(tmp_path)!r}, artifacts="s3://bucket"))
except Exception as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("MachineError Artifacts in S3 need the package boto3."), done.stdout
    assert "tunefleet[s3]" in done.stdout
