"""A federation whose server keeps its files in a real S3 service: adapters are checked here and fetched there."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tests.integration.server.federated import arrays, create, values, workers
from tests.integration.server.support import Running
from tests.integration.server.test_federations import Sender

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def running(
    start: Callable[..., Running], s3_server: Gateway, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    running = start(
        tmp_path_factory.mktemp("data"),
        artifacts=f"s3://{BUCKET}/federations",
        s3_endpoint=s3_server.endpoint,
        s3_access_key=s3_server.environment["AWS_ACCESS_KEY_ID"],
        s3_secret_key=SECRET_KEY,
    )
    yield running
    running.stop()
    running.core.close()


def test_archives_and_files_make_a_version_that_is_fetched_from_the_service(
    running: Running, admin: httpx.Client, s3_server: Gateway, tmp_path: Path
) -> None:
    made = create(admin, min_workers=2)
    two = Sender(running, made, "two", tmp_path)
    with workers(running, made, tmp_path, "one") as (one,):
        one.upload(arrays(1), beside={"tokenizer.json": b"{}"})
        two.send(arrays(2))
        said = one.await_version(1)
    led = httpx.get(said["downloadUrl"])
    assert led.status_code == 307
    assert led.headers["location"].startswith(s3_server.endpoint)
    whole = httpx.get(said["downloadUrl"], follow_redirects=True)
    with tarfile.open(fileobj=io.BytesIO(whole.content), mode="r:gz") as tar:
        assert set(tar.getnames()) == {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"}
    adapter = httpx.get(two.get("/versions/1/adapter").headers["location"])
    got, left, right = values(tmp_path, adapter.content), arrays(1), arrays(2)
    for name, value in got.items():
        np.testing.assert_allclose(value, (left[name] + right[name]) / 2, rtol=1e-5, atol=1e-6)
    assert two.get("/versions/1/config").json()["r"] == 2
    assert not list((running.core.blobs.root / "landing").iterdir())
    two.client.close()
