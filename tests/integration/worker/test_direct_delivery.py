"""Workers on both links bring a large result straight to a real S3 service, by the address that they reach it at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.redis.process import RedisProcess
from tests.integration.redis.site import Proxy
from tests.integration.s3.gateway import BUCKET, Gateway
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.timeout(180)]

SIZE = 20 << 20
MAKES = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: makes}
spec:
  taskType: command
  command: [python, -c, "open('weights.bin', 'wb').write(bytes(range(256)) * (20 << 12))"]
  outputs: {weights: weights.bin}
"""
DIGEST = hashlib.sha256(bytes(range(256)) * (20 << 12)).hexdigest()


@pytest.fixture
def counter(s3_server: Gateway) -> Iterator[Proxy]:
    made = Proxy(s3_server.port, 0.0)
    yield made
    made.close()


@pytest.mark.parametrize("link", ["http", "redis"])
def test_a_result_goes_from_the_worker_to_the_store(
    link: str, counter: Proxy, s3_server: Gateway, tmp_path: Path,
    redis_server: Callable[..., RedisProcess], free_port: Callable[[], int],
) -> None:  # fmt: skip
    environment = {
        **s3_server.environment,
        "TUNEFLEET_ARTIFACTS": f"s3://{BUCKET}/{tmp_path.name}",
        "TUNEFLEET_S3_PUBLIC_ENDPOINT": f"http://127.0.0.1:{counter.port}",
        "TUNEFLEET_DIRECT_UPLOADS": "on",
        "TUNEFLEET_DIRECT_UPLOAD_BYTES": str(SIZE),
        "TUNEFLEET_ALLOW_CODE": "true",
        "TUNEFLEET_WARM_START": "false",
        **({"REDIS_URL": redis_server().url} if link == "redis" else {}),
    }
    fleet = LocalFleet(tmp_path / "data", port=free_port(), environment=environment, save_client=False)
    with fleet, Client(fleet.url, fleet.key) as client:
        run = client.submit(MAKES).wait(timeout_s=120)
        assert run.status == "completed"
        assert {worker.capabilities.link for worker in client.workers.list().items} == {link}
        artifact = next(each for each in client.artifacts.list().items if each.size_bytes == SIZE)
        client.artifacts.fetch(artifact.id, tmp_path / "copy")
    (copy,) = (path for path in (tmp_path / "copy").rglob("*") if path.is_file())
    assert hashlib.sha256(copy.read_bytes()).hexdigest() == DIGEST
    assert SIZE < counter.sent_bytes < SIZE + (1 << 20), "by the address of the workers, and once"
