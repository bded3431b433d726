"""What `tunefleet worker --on` asks of Slurm and Ray, and what it refuses before it asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from tunefleet.cli.workers.start_worker import Pool, _reading_key, _requests, end_pool, start_pool
from tunefleet.errors import AuthError, InputError
from tunefleet.integrations.clusters import Engine
from tunefleet.integrations.clusters.ray_order import KEY, LASTING, SERVER
from tunefleet.settings import ClusterSettings, WorkerSettings, load

LOOPBACK, SEEN_BY_NODES = "http://127.0.0.1:8000", "http://10.0.0.1:8000"


@pytest.fixture
def worker(home: Path) -> WorkerSettings:
    return load(WorkerSettings, server_url=LOOPBACK, key=SecretStr("tf_worker"))


@pytest.fixture
def clusters(home: Path) -> ClusterSettings:
    return load(ClusterSettings, nodes_url=SEEN_BY_NODES)


def test_slurm_gets_a_job_for_each_node(worker: WorkerSettings, clusters: ClusterSettings) -> None:
    asks = _requests(Pool("slurm", "lab", "2", cpus=4, gpus=1, memory="2Gi", tags="a100"), clusters, worker)
    assert [(ask.name, ask.nodes, ask.nodes_max) for ask in asks] == [("lab-0", 1, 1), ("lab-1", 1, 1)]
    assert asks[0].command == ("tunefleet", "worker", "--server", SEEN_BY_NODES)
    assert (asks[0].cpu, asks[0].gpu_count, asks[0].memory_bytes) == (4, 1, 2 << 30)
    environment = asks[0].environment
    assert (environment["TUNEFLEET_WORKER_KEY"], environment["TUNEFLEET_WORKER_TAGS"]) == ("tf_worker", "a100")


def test_ray_gets_one_job_which_asks_for_tasks_only_if_it_may_take_more_nodes(
    worker: WorkerSettings, clusters: ClusterSettings
) -> None:
    (ask,) = _requests(Pool("ray", "lab", "2"), clusters, worker)
    assert (ask.name, ask.nodes, ask.nodes_max) == ("lab", 2, 2)
    assert dict(ask.options) == {LASTING: "true", SERVER: "", KEY: ""}


@pytest.mark.parametrize(("nodes_url", "url"), [(SEEN_BY_NODES, SEEN_BY_NODES), (None, LOOPBACK)])
def test_the_head_asks_the_server_where_the_workers_find_it(
    nodes_url: str | None, url: str, worker: WorkerSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_KEY", "tf_viewer")
    (ask,) = _requests(Pool("ray", nodes="0:8"), load(ClusterSettings, nodes_url=nodes_url), worker)
    assert ask.command[-1] == url
    assert (ask.nodes, ask.nodes_max) == (0, 8)
    assert (ask.options[SERVER], ask.options[KEY]) == (url, "tf_viewer")


def test_without_a_key_that_may_read_tasks_more_nodes_are_refused(home: Path) -> None:
    with pytest.raises(AuthError, match=r"10\.0\.0\.1:8000 cannot be read.*TUNEFLEET_KEY"):
        _reading_key(SEEN_BY_NODES)


@pytest.mark.parametrize(
    ("engine", "nodes", "words"),
    [
        ("slurm", "0", r"--nodes 0 requests no worker\..*--end"),
        ("ray", "0:0", r"--nodes 0:0 requests no worker\."),
        ("ray", "8:2", "not a number of nodes"),
        ("slurm", "many", "not a number of nodes"),
        ("slurm", "2:8", r"only supported on Ray.*engine: slurm"),
    ],
)
def test_numbers_of_nodes_that_ask_for_nothing_or_say_nothing_are_refused(
    engine: Engine, nodes: str, words: str, worker: WorkerSettings, clusters: ClusterSettings
) -> None:
    with pytest.raises(InputError, match=words):
        _requests(Pool(engine, nodes=nodes), clusters, worker)


def test_workers_without_a_key_are_refused_before_the_cluster_is_asked(home: Path) -> None:
    with pytest.raises(AuthError, match="TUNEFLEET_WORKER_KEY"):
        start_pool(Pool("ray"), load(WorkerSettings, server_url=LOOPBACK), as_json=False)


def test_ending_no_worker_is_refused_too(home: Path) -> None:
    with pytest.raises(InputError, match="requests no worker"):
        end_pool(Pool("slurm", nodes="0"))
