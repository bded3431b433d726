"""The end of a pause on two ranks, which are threads over a real store: all leave, or none."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunefleet.trainer_control.checkpoints.finalizer import CheckpointCommit
from tunefleet.trainer_control.control.command_queue import Command, CommandQueue
from tunefleet.trainer_control.distributed.tcp_store import StoreConnection
from tunefleet.trainer_control.journal.null import NullJournal
from tunefleet.trainer_control.journal.status import StatusFile
from tunefleet.trainer_control.session import JobSession


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global CheckpointCallback, TerminationCallback, PrefixStore, TCPStore
    pytest.importorskip("torch")

    from torch.distributed import PrefixStore, TCPStore

    from tunefleet.trainer_control.callbacks.checkpoint_callback import CheckpointCallback
    from tunefleet.trainer_control.callbacks.termination_callback import TerminationCallback


pytestmark = pytest.mark.torch


class Rank:
    """What of our callbacks one rank has that ends it."""

    def __init__(self, line: StoreConnection, folder: Path) -> None:
        self.status = StatusFile(folder if line.rank == 0 else None)
        session = JobSession(folder, {}, NullJournal(log_events=False), self.status, None, rank=line.rank)
        self.board, self.folder = CommandQueue(), folder
        self.checkpoints = CheckpointCallback(session, self.board, retention=False)
        self.checkpoints._finisher.join_ranks(CheckpointCommit(line))
        self.ending = TerminationCallback(session, self.board, self.checkpoints)
        self.events: Any = (SimpleNamespace(output_dir=str(folder)), None, SimpleNamespace(should_training_stop=False))

    def save(self, step: int) -> None:
        """Do what happens in the save of a step that a pause acts at."""
        name = f"pause-{step}"
        self.board.adopt(Command(name, "pause"))
        self.board.applied(name, step, saving=True)
        self.ending.intend(name, step)
        args, _, control = self.events
        self.events = (args, SimpleNamespace(global_step=step, best_model_checkpoint=None), control)
        self.checkpoints.on_save(*self.events)
        self.ending.on_save(*self.events)


def together(ranks: list[Rank], step: int) -> list[bool]:
    """Save on all ranks at once; return which of their loops stop."""
    folder = ranks[0].folder / f"checkpoint-{step}"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    threads = [threading.Thread(target=rank.save, args=(step,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [rank.events[2].should_training_stop for rank in ranks]


def test_a_pause_that_rank_0_cannot_write_down_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)
    ranks = [Rank(StoreConnection(PrefixStore("ending", store.clone()), rank, 2, 20.0), tmp_path) for rank in range(2)]

    def full(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ranks[0].status, "write", full)
        assert together(ranks, 5) == [False, False]
    for rank in ranks:
        rank.ending.on_step_begin(*rank.events)
        rank.ending.on_epoch_end(*rank.events)
        item = rank.board.state("pause-5")
        assert item is not None
        assert item.state == "failed"
    assert "No space left" in str(ranks[0].board._known["pause-5"].message)
    assert ranks[0].status.fields["state"] == "starting"

    assert together(ranks, 6) == [True, True]
    for rank in ranks:
        with pytest.raises(SystemExit):
            rank.ending.on_epoch_end(*rank.events)
    assert ranks[0].status.fields["state"] == "paused"
