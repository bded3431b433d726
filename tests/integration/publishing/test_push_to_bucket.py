"""A push to a bucket of a real S3 service, with keys that the task names as secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.publishing.conftest import Push
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tunefleet.lifecycle.task import TaskReason
from tunefleet.workloads.publishing import CHECKED

pytestmark = [pytest.mark.proof, pytest.mark.timeout(200)]

TO = f"s3://{BUCKET}/pushed/adapter"
KEYS = {"access_key": "${secret:KEY}", "secret_key": "${secret:SECRET}"}


def worker(s3: Gateway, **more: str) -> dict[str, str]:
    keys = s3.environment
    return {"TUNEFLEET_S3_ENDPOINT": s3.endpoint, "TUNEFLEET_SECRET_KEY": keys["AWS_ACCESS_KEY_ID"],
            "TUNEFLEET_SECRET_SECRET": keys["AWS_SECRET_ACCESS_KEY"], **more}  # fmt: skip


def there(s3: Gateway) -> set[str]:
    found = s3.client.list_objects_v2(Bucket=BUCKET, Prefix="pushed/").get("Contents", ())
    return {each["Key"].removeprefix("pushed/adapter/") for each in found}


def test_files_go_to_the_prefix_and_an_interrupted_push_is_repeated(
    s3_server: Gateway, push: Push, adapter: Path
) -> None:
    made = push(TO, worker(s3_server), **KEYS)
    assert (made.result["url"], made.result["commit"]) == (TO, None)
    assert there(s3_server) == set(made.result["files"])
    assert SECRET_KEY.encode() not in made.written()
    # As if it had been killed after the first file: without its result, and with that file in the bucket.
    made.runner.folder.responses_json.unlink()
    s3_server.client.delete_object(Bucket=BUCKET, Key="pushed/adapter/adapter_config.json")
    again = push(TO, worker(s3_server), **KEYS)
    assert there(s3_server) == set(again.result["files"])
    # Another task finds the files of the first one.
    (made.runner.folder.root / CHECKED).unlink()
    made.runner.folder.responses_json.unlink()
    other = push(TO, worker(s3_server), **KEYS)
    assert (other.end.reason, "is not empty" in str(other.end.error)) == (TaskReason.BAD_INPUT, True)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"TUNEFLEET_SECRET_SECRET": "wrong-key-1234"}, "has no write access"),
        ({"AWS_SESSION_TOKEN": "of-the-worker", "TUNEFLEET_SECRET_KEY": "not-a-key"}, "has no write access"),
    ],
)
def test_the_keys_are_those_of_the_task(s3_server: Gateway, push: Push, more: dict[str, str], says: str) -> None:
    own: dict[str, Any] = {key: s3_server.environment[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    made = push(f"{TO}-2", worker(s3_server, **own, **more), **KEYS)
    assert made.end.reason == TaskReason.BAD_INPUT
    assert says in str(made.end.error)
    assert b"wrong-key-1234" not in made.written()
