"""A real S3 service that is full, takes its key away, or has another time: named, and nothing lost."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.s3.gateway import BUCKET, Gateway
from tunefleet.artifacts import Link, NoRoomError
from tunefleet.artifacts.s3 import Bucket, S3Store
from tunefleet.errors import MachineError

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

ACCESS, SECRET = "small-access", "small-secret-0123456789"


@pytest.fixture
def store(s3_server: Gateway, tmp_path: Path) -> Iterator[S3Store]:
    """A store of a user of its own, with a bucket of its own."""
    s3_server.admin("user", "create", "--uid", "small", "--display-name", "s", "--access-key", ACCESS,
                    "--secret", SECRET)  # fmt: skip
    bucket = Bucket("small", endpoint=s3_server.endpoint, access_key=ACCESS, secret_key=SECRET)
    bucket.client(s3_server.endpoint).create_bucket(Bucket="small")
    made = S3Store(tmp_path, bucket)
    yield made
    made.close()
    s3_server.admin("user", "rm", "--uid", "small", "--purge-data")


def put(store: S3Store, data: bytes) -> str:
    digest = hashlib.sha256(data).hexdigest()
    with store.append(digest, store.partial_size(digest), len(data)) as upload:
        upload.write(data[upload.offset :])
        assert upload.finish()
    return digest


def test_a_full_bucket_and_a_lost_key_are_named_and_what_was_sent_goes_on(s3_server: Gateway, store: S3Store) -> None:
    whole = b"a" * 5000
    digest = hashlib.sha256(whole).hexdigest()
    s3_server.admin("quota", "set", "--quota-scope=bucket", "--uid", "small", "--max-objects=1")
    s3_server.admin("quota", "enable", "--quota-scope=bucket", "--uid", "small")
    put(store, b"the first")
    with pytest.raises(NoRoomError, match=r"s3://small is full \(QuotaExceeded\)\. Raise its quota"):
        put(store, whole)
    assert not store.has(digest)
    assert store.partial_size(digest) == len(whole), "Interrupted uploads are kept"
    s3_server.admin("quota", "disable", "--quota-scope=bucket", "--uid", "small")

    s3_server.admin("user", "suspend", "--uid", "small")
    with pytest.raises(MachineError, match=r"UserSuspended\. The keys are rejected, expired") as lost:
        put(store, whole)
    assert SECRET not in f"{lost.value} {lost.value.detail}"
    assert store.partial_size(digest) == len(whole)
    s3_server.admin("user", "enable", "--uid", "small")
    put(store, whole)
    assert store.read(digest) == whole
    assert store.partial_size(digest) == 0


@pytest.mark.parametrize("minutes", [-1, 1])
def test_a_clock_that_is_a_minute_off_does_no_harm(
    minutes: int, s3_server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = S3Store(tmp_path, at(s3_server))
    shift_clock(monkeypatch, minutes)
    digest = put(store, b"in time")
    source = store.source(digest, "x")
    assert isinstance(source, Link)
    assert httpx.get(source.url, trust_env=False).content == b"in time"
    store.close()


def test_a_clock_that_is_far_off_is_named(s3_server: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shift_clock(monkeypatch, -20)
    with pytest.raises(MachineError, match=r"RequestTimeTooSkewed\. The clocks of this server"):
        S3Store(tmp_path, at(s3_server))


def at(s3_server: Gateway) -> Bucket:
    keys = s3_server.environment
    return Bucket(
        BUCKET,
        "clocks",
        endpoint=s3_server.endpoint,
        access_key=keys["AWS_ACCESS_KEY_ID"],
        secret_key=keys["AWS_SECRET_ACCESS_KEY"],
    )


def shift_clock(monkeypatch: pytest.MonkeyPatch, minutes: int) -> None:
    import botocore.auth

    def shifted(*, remove_tzinfo: bool = True) -> datetime.datetime:
        now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=minutes)
        return now.replace(tzinfo=None) if remove_tzinfo else now

    monkeypatch.setattr(botocore.auth, "get_current_datetime", shifted)
