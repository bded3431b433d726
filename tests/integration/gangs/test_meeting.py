"""A node that does not meet the others says where it tried, and which settings decide that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.ranks.conftest import job
from tests.libraries import required
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import Supervisor
from tunefleet.schemas.job_folder import GangJob
from tunefleet.settings import inherited_environment

required("torch")
pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(120)]


def test_nodes_that_do_not_meet_name_the_address_and_the_port(tmp_path: Path) -> None:
    """The first waits in vain, and another one finds nobody where it should be."""
    supervisor = Supervisor(
        tmp_path / "results", endpoints_dir=tmp_path / "jobs", warm=False, base_env=inherited_environment()
    )
    handles = {}
    for rank, port in ((0, 29_871), (1, 29_872)):
        gang = GangJob(id="g", rank=rank, nodes=2, host="127.0.0.1", port=port, address="127.0.0.1", join_s=2)
        given = job("tunefleet.workloads.training:main", processes=1, job_id=f"node-{rank}")
        handles[rank] = supervisor.launch(given.model_copy(update={"gang": gang}))
    ends = {rank: handle.wait(90) for rank, handle in handles.items()}
    for rank, port in ((0, 29_871), (1, 29_872)):
        end = ends[rank]
        assert end is not None
        assert end.reason is TaskReason.NETWORK, handles[rank].folder.log.read_text()
        assert f"127.0.0.1:{port}" in (end.error or "")
        assert "firewall" in (end.error or "")


def test_the_interface_is_that_of_the_address() -> None:
    from tunefleet.workloads.distributed.torchrun import interface_of

    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None
