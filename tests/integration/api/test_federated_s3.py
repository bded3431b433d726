"""A federation whose server keeps its files in a real S3 service: adapters are checked here and fetched there."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.integration.api.federated import arrays, create, values, workers
from tests.integration.api.support import Running
from tests.integration.api.test_federations import Sender
from tests.integration.s3.gateway import BUCKET, SECRET_KEY, Gateway
from tests.unit.federation.adapters import config
from tunefleet.client.federation.client import FederatedClient
from tunefleet.federation import TENSORS

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]


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


def test_an_update_with_its_file_and_a_version_that_is_waited_for_take_a_request_each(
    running: Running, admin: httpx.Client, s3_server: Gateway, tmp_path: Path
) -> None:
    made = create(admin, min_workers=2)
    with ExitStack() as stack:
        one, two = (
            stack.enter_context(FederatedClient(running.url, made["id"], name, made["token"], patience_s=60))
            for name in ("one", "two")
        )
        pool = stack.enter_context(ThreadPoolExecutor(1))
        waiting = pool.submit(one.fetch, tmp_path / "inbox", wait_s=120)
        for client, seed in ((one, 1), (two, 2)):
            assert client.upload(arrays(seed), step=1, num_examples=1, config=config()).counted
        fetched = waiting.result()
    assert fetched is not None
    assert (fetched.version, fetched.round) == (1, 1)
    got, left, right = values(tmp_path, (fetched.folder / TENSORS).read_bytes()), arrays(1), arrays(2)
    for name, value in got.items():
        np.testing.assert_allclose(value, (left[name] + right[name]) / 2, rtol=1e-5, atol=1e-6)
    led = admin.get(f"/federations/{made['id']}/versions/newest/adapter", follow_redirects=False)
    assert (led.status_code, led.headers["Version"]) == (307, "1")
    assert led.headers["location"].startswith(s3_server.endpoint)
    assert not list((running.core.blobs.root / "uploads").glob("*.part"))
