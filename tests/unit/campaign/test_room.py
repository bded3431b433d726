"""A folder of a step lies beside the server's data and goes with it, and a full disk has its own sentence."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.campaign.played import Counted, Points, Shop, engine
from tests.unit.campaign.service.desk import made
from tests.unit.orchestrator.lab import Lab
from tunefleet.campaign.contract import Later, Outcome, StepContext
from tunefleet.campaign.scratch_folder import clear, disk_full_error, step_folder
from tunefleet.campaign.service import service
from tunefleet.campaign.service.engine_repository import CampaignRepository
from tunefleet.lifecycle.cycle import StepName


async def test_it_is_removed_apart_from_the_loop_and_what_a_kill_has_left_with_the_next_start(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed_in: list[threading.Thread] = []
    remove = shutil.rmtree

    def seen(path: Any, **how: Any) -> None:
        removed_in.append(threading.current_thread())
        remove(path, **how)

    monkeypatch.setattr(shutil, "rmtree", seen)
    context: Any = SimpleNamespace(repository=CampaignRepository(lab.core))
    async with step_folder(context, "publish") as folder:
        assert folder.is_relative_to(lab.core.settings.data_dir)
        (folder / "model.safetensors").write_bytes(b"all of it")
    assert not folder.exists()
    left = folder.parent / "publish-of-a-dead-one"
    left.mkdir()
    await clear(context.repository.folder)
    assert not left.exists()
    assert threading.main_thread() not in removed_in
    assert len(removed_in) == 2


class Fetching(Counted):
    """Meets what a model meets that is larger than the disk."""

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        async with step_folder(context, "publish") as folder:
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "model.safetensors"))


async def test_a_full_disk_is_said_to_be_full_and_another_fault_is_not(lab: Lab) -> None:
    id_ = await made(lab)
    await engine(lab, Shop(), Points(), real=[Fetching(StepName.PUBLISH, [])]).advance(id_)
    shown = (await service.get(lab.core, lab.admin, id_)).cycle_list[0]
    assert shown.error is not None
    assert shown.error.startswith(f"The server's disk is full: {CampaignRepository(lab.core).folder}")
    assert "model.safetensors. Free disk space" in shown.error
    assert list(CampaignRepository(lab.core).folder.iterdir()) == []
    assert disk_full_error(PermissionError(errno.EACCES, "no"), Path("x")) is None
