"""Models that are published over each other, in a real S3 service."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from tests.integration.s3.gateway import ACCESS_KEY, BUCKET, SECRET_KEY, Gateway
from tunefleet.errors import ConflictError
from tunefleet.integrations.publishing.targets import PublishOptions, Target, target
from tunefleet.settings import PublishSettings

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]


def files(folder: Path, **content: bytes) -> Path:
    folder.mkdir()
    for name, data in content.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def test_no_weights_of_an_earlier_model_stay_beside_those_of_another(s3_server: Gateway, tmp_path: Path) -> None:
    settings = PublishSettings(
        s3_endpoint=s3_server.endpoint, s3_access_key=SecretStr(ACCESS_KEY), s3_secret_key=SecretStr(SECRET_KEY)
    )

    def place(*, force: bool = True) -> Target:
        return target(f"s3://{BUCKET}/models/daily", PublishOptions(force=force), settings)

    def there() -> dict[str, bytes]:
        found = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix="models/")["Contents"]
        keys = [each["Key"] for each in found]
        got = {key: s3_server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
        return {key.removeprefix("models/"): data for key, data in got.items()}

    whole = {
        "model.safetensors": b"one",
        "config.json": b"{}",
        "notes.txt": b"mine",
        "checkpoint-1__x.safetensors": b"c",
    }
    place(force=False).check()
    sent: list[int] = []
    drop: list[int] = []
    place().put(files(tmp_path / "first", **whole), sent.append)
    assert sum(sent) == sum(map(len, whole.values()))
    beside = tmp_path / "beside"
    target(f"s3://{BUCKET}/models/daily-2", PublishOptions(), settings).put(
        files(beside, **{"model.safetensors": b"2"}), drop.append
    )
    with pytest.raises(ConflictError, match="is not empty"):
        place(force=False).check()
    shards = {
        "model-00001-of-00002.safetensors": b"a", "model-00002-of-00002.safetensors": b"b",
        "model.safetensors.index.json": b"{}", "config.json": b"{1}",
    }  # fmt: skip
    place().put(files(tmp_path / "second", **shards), drop.append)
    kept = {"daily/notes.txt": b"mine", "daily/checkpoint-1/x.safetensors": b"c", "daily-2/model.safetensors": b"2"}
    assert there() == {**{f"daily/{name}": data for name, data in shards.items()}, **kept}
    place().put(tmp_path / "first", drop.append)
    assert sorted(name for name in there() if name.startswith("daily/model")) == ["daily/model.safetensors"]
