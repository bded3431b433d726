"""`tunefleet worker --once`: a worker for one task, on a node of a cluster."""

from __future__ import annotations

import socket
from pathlib import Path

from tunefleet.settings import WorkerSettings
from tunefleet.worker.ephemeral import EphemeralWorkerOptions

HOST = socket.gethostname().partition(".")[0]


def test_job_and_node_of_the_cluster_make_folder_and_name(tmp_path: Path) -> None:
    settings = WorkerSettings(nodes_dir=tmp_path, nodes_job="tunefleet-task_a-2", node=3, tags=("lab",))
    once = EphemeralWorkerOptions.of("task_a", settings)
    applied = once.applied(settings)
    assert applied.results_dir == tmp_path / "tunefleet-task_a-2" / f"3-{HOST}"
    assert applied.worker_id == f"tunefleet-task_a-2.3.{HOST}"
    assert applied.tags == ("lab", "only:task_a")
    assert once.applied(applied).tags == ("lab", "only:task_a")


def test_a_job_without_a_name_is_named_after_its_task(tmp_path: Path) -> None:
    once = EphemeralWorkerOptions.of("task_a", WorkerSettings(nodes_dir=tmp_path))
    assert (once.name, once.folder) == (f"tunefleet-task_a.0.{HOST}", tmp_path / "tunefleet-task_a" / f"0-{HOST}")


def test_what_somebody_has_set_stays(tmp_path: Path) -> None:
    settings = WorkerSettings(nodes_dir=tmp_path / "nodes", results_dir=tmp_path / "mine", worker_id="me")
    applied = EphemeralWorkerOptions.of("task_a", settings).applied(settings)
    assert (applied.results_dir, applied.worker_id) == (tmp_path / "mine", "me")
    EphemeralWorkerOptions.of("task_a", settings).clean(tmp_path / "mine")
    assert not (tmp_path / "nodes").exists()


def test_a_folder_with_nothing_left_goes_and_with_the_last_node_that_of_the_job(tmp_path: Path) -> None:
    def node(number: int) -> tuple[EphemeralWorkerOptions, Path]:
        settings = WorkerSettings(nodes_dir=tmp_path, nodes_job="job", node=number)
        once = EphemeralWorkerOptions.of("task_a", settings)
        folder = once.applied(settings).results_dir
        (folder / "task_a").mkdir()
        return once, folder

    (first, of_first), (second, of_second) = node(0), node(1)
    first.clean(of_first)
    assert (of_first.exists(), of_second.exists()) == (False, True)
    second.clean(of_second)
    assert list(tmp_path.iterdir()) == []
