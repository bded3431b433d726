"""`tunefleet doctor` tries the store of files: it says what is wrong with it, and leaves nothing there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.artifacts.test_stores import (  # noqa: F401 its fixtures
    DIGEST,
    Make,
    fetched,
    in_azure,
    in_folder,
    in_gcs,
    in_s3,
    in_shared,
    make,
    put,
    store,
)
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tunefleet.artifacts import BlobStore, FolderStore
from tunefleet.cli.server.check_machine import artifact_store, prove
from tunefleet.errors import MachineError, TunefleetError
from tunefleet.orchestrator.federation import adapter_files

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]


@pytest.mark.parametrize("store", ["folder", "shared", "s3", "gcs", pytest.param("azure")], indirect=True)
def test_every_store_is_proved_and_nothing_is_left(store: BlobStore) -> None:  # noqa: F811
    prove(store)
    assert store.kept_before(float("inf")) == {}
    assert list(store.uploads.iterdir()) == []


@pytest.fixture
def keep_deletions_from(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], None]]:
    def deny(bucket: Any) -> None:
        def refuse(**_: Any) -> None:
            raise ValueError("may not delete")

        monkeypatch.setattr(bucket._client, "delete_object", refuse)

    return deny  # type: ignore[return-value]


def test_what_cannot_be_removed_is_said(make: Make, keep_deletions_from: Callable[[Any], None]) -> None:  # noqa: F811
    bucket = make()
    keep_deletions_from(bucket)
    with pytest.raises(MachineError, match="cannot be removed"):
        prove(bucket)


def test_a_deletion_that_fails_denies_no_file_that_another_server_stores_anew(
    make: Make,  # noqa: F811
    keep_deletions_from: Callable[[Any], None],
) -> None:
    one, other = make(), make()
    one.others_write = other.others_write = True
    put(one)
    keep_deletions_from(one)
    one.delete(DIGEST)
    put(other)
    assert one.has(DIGEST)
    assert fetched(one, DIGEST) == fetched(other, DIGEST)


def test_a_damaged_object_is_never_averaged(make: Make, s3_server: Gateway, tmp_path: Path) -> None:  # noqa: F811
    bucket = make()
    put(bucket)
    s3_server.client.put_object(Bucket=BUCKET, Key=bucket._key(DIGEST), Body=b"something else")
    with pytest.raises(MachineError, match=r"does not match its digest"):
        adapter_files.local(bucket, DIGEST, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def test_the_doctor_tries_the_bucket_that_the_settings_name(
    s3_server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TUNEFLEET_DATA", str(tmp_path / "data"))
    found = artifact_store()
    assert (found.state, found.found.endswith("(s3): a file was written, read and removed")) == ("good", True)
    assert list((tmp_path / "data").rglob("*")) == []
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
        found = artifact_store()
        assert found.state == "bad"
        assert "SignatureDoesNotMatch" in found.found
        assert "wrong-secret" not in found.model_dump_json()
    with monkeypatch.context() as wrong:
        wrong.setenv("TUNEFLEET_ARTIFACTS", "s3://no-such-bucket")
        assert "NoSuchBucket" in artifact_store().found
    assert SECRET_KEY not in found.model_dump_json()


def test_the_doctor_tries_a_folder_once_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_DATA", str(tmp_path))
    assert artifact_store().found.endswith("is created at the first start")
    assert list(tmp_path.iterdir()) == []
    FolderStore(tmp_path / "artifacts")
    assert artifact_store().state == "good"

    def full(*_: Any) -> None:
        raise TunefleetError("The disk is full.", hint="Make room.")

    monkeypatch.setattr(FolderStore, "expect", full)
    found = artifact_store()
    assert (found.state, found.mend) == ("bad", "Make room.")
