"""Results are delivered to a bucket of a real S3 service, with keys that the document names as secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.s3.gateway import BUCKET, Gateway
from tests.unit.worker.test_destinations import ENVELOPE, Sleeps
from tunefleet.runtime.secrets import Secrets
from tunefleet.worker.outputs.destinations import DeliveryError, Destination
from tunefleet.worker.transfers import Transfers


@pytest.fixture(autouse=True)
def service(s3_server: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker knows the service, and none of its keys."""
    monkeypatch.setenv("TUNEFLEET_S3_ENDPOINT", s3_server.endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def destination(s3_server: Gateway, url: str, *, key: str | None = None, **wanted: Any) -> tuple[Destination, Sleeps]:
    keys = s3_server.environment
    secrets = Secrets({"KEY": keys["AWS_ACCESS_KEY_ID"], "SECRET": key or keys["AWS_SECRET_ACCESS_KEY"]})
    named = {"type": "s3", "url": url, "access_key": "${secret:KEY}", "secret_key": "${secret:SECRET}", **wanted}
    transfers = replace(Transfers(), patience_s=60.0)
    sleeps = Sleeps()
    return Destination("task-1", {"destination": named}, transfers, secrets, sleeps), sleeps


def test_result_and_files_lie_below_the_tasks_id(s3_server: Gateway, tmp_path: Path) -> None:
    file = tmp_path / "final_lora.tar.gz"
    file.write_bytes(os.urandom(1 << 20))
    made, _ = destination(s3_server, f"s3://{BUCKET}/results/lab")
    made.check()
    for _ in range(2):  # a repetition finds what is there, and writes it again
        made.deliver(ENVELOPE, [file])
    there = {
        each["Key"]: s3_server.client.get_object(Bucket=BUCKET, Key=each["Key"])["Body"].read()
        for each in s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix="results/lab/")["Contents"]
    }
    assert sorted(there) == ["results/lab/task-1/final_lora.tar.gz", "results/lab/task-1/results.json"]
    assert there["results/lab/task-1/final_lora.tar.gz"] == file.read_bytes()
    assert json.loads(there["results/lab/task-1/results.json"])["result"] == {"ok": True}


@pytest.mark.parametrize(
    ("bucket", "key", "says"),
    [
        (BUCKET, "wrong-key-1234", "has no write access"),
        ("no-such-bucket-here", None, "does not exist"),
        (f"{BUCKET}/{'x' * 1100}", None, "Cannot write to"),
    ],
)
def test_what_is_refused_is_not_tried_again_and_names_no_secret(
    s3_server: Gateway, bucket: str, key: str | None, says: str
) -> None:
    made, sleeps = destination(s3_server, f"s3://{bucket}/x", key=key)
    with pytest.raises(DeliveryError, match=says) as failed:
        made.deliver(ENVELOPE, [])
    assert sleeps.seconds == []
    assert "tunefleet artifacts deliver task-1" in str(failed.value)
    assert "wrong-key" not in str(failed.value)


def test_a_service_that_does_not_answer_is_waited_for(
    s3_server: Gateway, monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]
) -> None:
    monkeypatch.setenv("TUNEFLEET_S3_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    made, sleeps = destination(s3_server, f"s3://{BUCKET}/x", retries=1, retryBackoffSec=0.5)
    with pytest.raises(DeliveryError, match="Cannot reach"):
        made.deliver(ENVELOPE, [])
    assert sleeps.seconds == [0.5]
