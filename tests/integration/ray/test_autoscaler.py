"""What is asked of a Ray cluster that has no node yet: its autoscaler is told, and starts some.

The autoscaler is Ray's; the machines of its provider for tests are raylets on this one. The tasks that wait are
those of a real server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.clusters.cluster_contract import ENDLESS, ask, lines, until
from tests.integration.ray.cluster import PYTHON, RayCluster
from tunefleet.api import launch
from tunefleet.api.app import create_app
from tunefleet.client import Client
from tunefleet.integrations.clusters.ray import Ray, lasting
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.settings import ServerSettings, load

pytestmark = [pytest.mark.heavy, pytest.mark.proof, pytest.mark.timeout(180)]

ECHO = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: hello}
spec: {taskType: echo, data: {type: list, items: [a]}}
"""


@pytest.fixture(scope="module")
def ray(ray_cluster: Callable[..., RayCluster]) -> RayCluster:
    return ray_cluster(autoscaled=True)


@pytest.fixture
def cluster(ray: RayCluster) -> Iterator[Ray]:
    with closing(Ray(ray.address, ray.token, python=str(PYTHON))) as adapter:
        yield adapter


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a server without a worker, and a key."""
    core = open_context(load(ServerSettings, data=tmp_path / "data", synchronous="NORMAL"))
    bound = launch.bind("127.0.0.1", 0)
    serving = launch.make(create_app(core))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not serving.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}", (tmp_path / "data" / "keys" / "admin.key").read_text().strip()
    serving.should_exit = True
    thread.join(15)
    core.close()


def test_lasting_workers_are_brought_and_more_of_them_while_tasks_wait(
    cluster: Ray, ray: RayCluster, server: tuple[str, str], tmp_path: Path
) -> None:
    begun, (url, key) = tmp_path / "begun", server
    wanted = ask(
        "lasting",
        f"echo $TUNEFLEET_NODE >> {begun}; {ENDLESS}",
        nodes=1,
    )
    cluster.submit(lasting(replace(wanted, nodes_max=2), server=url, key=key))
    until(cluster, "lasting", lambda seen: "none has that; waiting for Ray's autoscaler" in seen.reason)
    assert lines(begun, 1) == ["0"]
    assert len(ray.alive()) == 2, "the head and one"
    with Client(url, key) as client:
        for _ in range(2):
            client.submit(ECHO)
    assert lines(begun, 2) == ["0", "1"]
    assert len(ray.alive()) == 3
    cluster.cancel("lasting")
    assert until(cluster, "lasting").withdrawn


def test_what_the_autoscaler_does_not_bring_is_waited_for_with_patience(cluster: Ray) -> None:
    cluster.submit(ask("gpus", "true", nodes=1, gpu_count=1, patience_s=7.0))
    until(cluster, "gpus", lambda seen: "none has that; waiting for Ray's autoscaler, at most 7 s" in seen.reason)
    gpus = until(cluster, "gpus")
    assert gpus.reason.endswith("none has that; no change within 7 s.")
    assert gpus.hopeless
