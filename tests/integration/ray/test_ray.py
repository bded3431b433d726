"""The adapter and its program against a real Ray: nodes, reasons, secrets, and that nothing stays held."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.clusters.cluster_contract import ENDLESS, ClusterContract, ask, lines, until
from tests.integration.ray.cluster import PYTHON, RayCluster
from tunefleet.errors import ConflictError, UnreachableError
from tunefleet.integrations.clusters import ClusterJobState
from tunefleet.integrations.clusters.ray import Ray, lasting

pytestmark = [pytest.mark.heavy, pytest.mark.proof, pytest.mark.timeout(180)]

SECRET = "tfw_0123456789abcdef"


@pytest.fixture(scope="module")
def ray(ray_cluster: Callable[..., RayCluster]) -> RayCluster:
    return ray_cluster()


@pytest.fixture
def cluster(ray: RayCluster) -> Iterator[Ray]:
    with closing(Ray(ray.address, ray.token, python=str(PYTHON))) as adapter:
        yield adapter
    deadline = time.monotonic() + 20
    while held := ray.held():
        assert time.monotonic() < deadline, f"still held: {held}"
        time.sleep(0.2)


class TestRay(ClusterContract):
    def waits_for_room(self, seen: ClusterJobState) -> bool:
        return seen.reason == "Needs 2 nodes with 1 CPU; of the Ray cluster's 2 nodes, 2 qualify and none is free"


def test_what_ray_does_not_have_is_said_at_once_and_what_may_join_after_the_patience(cluster: Ray) -> None:
    cluster.submit(ask("gpus", "true", gpu_count=2, patience_s=600.0))
    cluster.submit(ask("three", "true", nodes=3))
    gpus, three = until(cluster, "gpus"), until(cluster, "three")
    assert gpus.reason == (
        "No node of the Ray cluster has 2 GPUs and 1 CPU, and there is no autoscaler that could add one."
    )
    assert three.reason == ("Needs 3 nodes with 1 CPU; of the Ray cluster's 2 nodes, 2 qualify; no change within 4 s.")
    assert gpus.hopeless
    assert three.hopeless


def test_free_nodes_are_taken_too_and_no_variable_is_seen_on_the_dashboard_or_in_a_log(
    cluster: Ray, ray: RayCluster, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    script = f"echo $TUNEFLEET_NODE $KEY >> {out}; {ENDLESS}"
    cluster.submit(
        replace(ask("secret", script, nodes=1, environment={"KEY": SECRET}, memory_bytes=50_000_000), nodes_max=5)
    )
    assert lines(out, 2) == [f"0 {SECRET}", f"1 {SECRET}"]
    for path, shows in (
        ("/api/jobs/", "ray_nodes"),
        ("/api/v0/actors?detail=1", "JobSupervisor"),
        ("/api/v0/runtime_envs?detail=1", "RAY_JOB_STOP_WAIT_TIME_S"),
    ):
        told = ray.ask(path).text
        assert shows in told
        assert SECRET not in told
    package = ray.ask("/api/jobs/secret").json()["entrypoint"].split("gcs://")[1]
    assert ray.ask(f"/api/packages/gcs/{package}").status_code == 404, "it was taken"
    cluster.cancel("secret")
    until(cluster, "secret")
    logs = [path for path in ray.folder.rglob("session_*/logs/**/*") if path.is_file()]
    assert logs
    assert [path.name for path in logs if SECRET in path.read_text(errors="replace")] == []


def test_what_ray_s_environment_lacks_is_named(cluster: Ray, ray: RayCluster) -> None:
    cluster.submit(replace(ask("command", ""), command=("tunefleet-nowhere",)))
    bare = ray.folder / "bare"
    bare.write_text(f'#!/bin/sh\nunset PYTHONPATH\nexec {PYTHON} -I -S "$@"\n')
    bare.chmod(0o755)
    for name, python in (("program", "python-nowhere"), ("package", str(bare))):
        with closing(Ray(ray.address, ray.token, python=python)) as other:
            other.submit(ask(name, "true"))
    with closing(Ray(ray.address, ray.token, python="PYTHON")) as any_one:
        ended = {name: until(any_one, name) for name in ("program", "package", "command")}
    assert all(each.hopeless for each in ended.values())
    assert ended["program"].reason == "The Ray cluster's head has no program 'PYTHON'."
    assert ended["package"].reason == "Tunefleet is not installed in the Ray cluster's PYTHON. Install it on all nodes."
    assert "could not start the command: tunefleet-nowhere: No such file or directory." in ended["command"].reason


def test_a_wrong_token_and_an_address_where_nobody_is_are_named(ray: RayCluster, free_port: Callable[[], int]) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    with closing(Ray(ray.address, "wrong")) as wrong, closing(Ray(ray.address, None)) as none:
        with pytest.raises(ConflictError, match=r"rejects the token.*TUNEFLEET_RAY_TOKEN"):
            wrong.submit(ask("wrong", "true"))
        with pytest.raises(ConflictError, match=r"requires a token.*TUNEFLEET_RAY_TOKEN"):
            none.look(["wrong"])
    said = f"No Ray cluster responds at {nowhere}.*TUNEFLEET_RAY_ADDRESS"
    with closing(Ray(nowhere, ray.token)) as nobody, pytest.raises(UnreachableError, match=said):
        nobody.cancel("wrong")


def test_when_the_program_is_killed_what_it_has_started_ends(cluster: Ray, ray: RayCluster, tmp_path: Path) -> None:
    begun, heard = tmp_path / "begun", tmp_path / "heard"
    script = f"trap 'echo x >> {heard}; exit 75' TERM; echo GPU $CUDA_VISIBLE_DEVICES >> {begun}; {ENDLESS}"
    cluster.submit(ask("killed", script, nodes=1, gpu_count=1))
    assert lines(begun, 1) == ["GPU 0"], "as Ray has given it"
    os.kill(int(ray.ask("/api/jobs/killed").json()["driver_info"]["pid"]), signal.SIGKILL)
    assert lines(heard, 1) == ["x"]
    assert not until(cluster, "killed").hopeless


def test_lasting_workers_begin_again_and_end_together(cluster: Ray, tmp_path: Path) -> None:
    begun, heard = tmp_path / "begun", tmp_path / "heard"
    script = f"trap 'echo x >> {heard}; exit 0' TERM; echo $TUNEFLEET_NODE $$ >> {begun}; {ENDLESS}"
    cluster.submit(lasting(ask("lasting", script)))
    first = lines(begun, 2)
    assert [line.split()[0] for line in first] == ["0", "1"]
    os.kill(int(first[0].split()[1]), signal.SIGKILL)
    assert [line.split()[0] for line in lines(begun, 3)] == ["0", "0", "1"]
    assert cluster.look(["lasting"])["lasting"].stage == "running"
    cluster.cancel("lasting")
    assert until(cluster, "lasting").withdrawn
    assert lines(heard, 2) == ["x", "x"]


def test_a_node_that_dies_is_named_and_the_rest_ends(cluster: Ray, ray: RayCluster, tmp_path: Path) -> None:
    begun, heard = tmp_path / "begun", tmp_path / "heard"
    cluster.submit(ask("dies", f"trap 'echo x >> {heard}; exit 75' TERM; echo x >> {begun}; {ENDLESS}"))
    lines(begun, 2)
    ray.lose()
    died = until(cluster, "dies")
    assert died.reason.startswith("Ray node 127.0.0.3 was lost: ")
    assert not died.hopeless
    assert lines(heard, 2) == ["x", "x"], "also that of the node that Ray has lost"
