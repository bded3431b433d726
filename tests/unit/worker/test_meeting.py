"""Where the nodes of a training on several workers meet, and what a node says of its end."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import MachineError
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor
from tunefleet.schemas.job_folder import GangJob, Job
from tunefleet.schemas.worker_link import Finish, GangNode, Offer, release_of
from tunefleet.worker.machine.probe import torch_version
from tunefleet.worker.machine.rendezvous import RendezvousAddress, as_node, is_member

MINE = release_of(version("tunefleet"), torch_version())


def offer(rank: int | None = 0, release: str = MINE) -> Offer:
    gang = None if rank is None else GangNode(id="att_1", rank=rank, nodes=2, release=release)
    given: dict[str, Any] = {"token": "t.m", "task_id": "task-1", "workflow_id": "wf-1", "attempt": 1, "name": "n"}
    return Offer(**given, kind="sft", spec={}, gang=gang)


def test_a_machine_without_an_address_says_what_to_set() -> None:
    with pytest.raises(MachineError) as caught:
        RendezvousAddress(None).choose_endpoint()
    assert "TUNEFLEET_GANG_ADDRESS" in (caught.value.hint or "")


def test_a_job_is_told_where_to_meet_and_other_releases_are_refused_by_name() -> None:
    place = RendezvousAddress("10.0.0.2", join_s=7)
    found = place.job(offer(1), "10.0.0.1:29500")
    assert found is not None
    assert (found.rank, found.nodes, found.host, found.port, found.address, found.join_s) == (
        1, 2, "10.0.0.1", 29500, "10.0.0.2", 7,
    )  # fmt: skip
    assert place.job(offer(None), None) is None
    with pytest.raises(MachineError, match=r"torch 0\.1: all nodes of a training run need the same versions"):
        place.job(offer(1, "Tunefleet 9, torch 0.1"), "10.0.0.1:29500")
    with pytest.raises(MachineError, match="rendezvous endpoint of the training run is unknown"):
        place.job(offer(1), None)


@pytest.mark.parametrize(
    ("reason", "error", "misses"),
    [
        (TaskReason.NETWORK, "Connection closed by peer", True),
        (TaskReason.CRASHED, "The training process crashed (SIGABRT).", True),
        (TaskReason.CRASHED, "The training process crashed (SIGSEGV).", False),
        (TaskReason.OUT_OF_MEMORY, "Out of memory.", False),
    ],
)
def test_only_an_end_that_another_node_may_have_brought_about_is_said_to_be_one(
    reason: TaskReason, error: str, misses: bool
) -> None:
    end = Finish(token="t.m", outcome="failed", reason=reason, error=error)
    assert as_node(offer(1), end).lost_peer is misses
    assert as_node(offer(None), end).lost_peer is False
    assert (is_member(offer(0)), is_member(offer(1)), is_member(offer(None))) == (False, True, False)


@pytest.mark.parametrize("gang", [True, False])
def test_a_node_computes_again_what_it_has_from_an_earlier_try(
    gang: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others of its gang would wait for one that only says what it has; a job alone on a machine does say it."""
    found = GangJob(id="att_1", rank=0, nodes=2, host="h", port=1, address="a", join_s=1.0) if gang else None
    job = Job(
        job_id="task-1", task_id="task-1", attempt=2, launch="l-2", kind="sft", name="n", program="p:m", spec={},
        gang=found,
    )  # fmt: skip
    supervisor = Supervisor(tmp_path, endpoints_dir=tmp_path / "jobs", warm=False, base_env={})
    monkeypatch.setattr(supervisor, "_start", lambda *_: {"ok": True})
    result = supervisor.folder("task-1").responses_json
    result.parent.mkdir()
    result.write_text("{}")
    supervisor.launch(job)
    assert result.exists() != gang
