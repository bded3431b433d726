"""The horizon over a real store, its ranks being threads that stumble along at random, and ranks that are gone."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tunefleet.trainer_control.checkpoints import finalizer
from tunefleet.trainer_control.checkpoints.finalizer import CheckpointCommit, CheckpointFinalizer, SavedCheckpoint
from tunefleet.trainer_control.checkpoints.manifest import invalid_reason
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.distributed import shared_memory, step_agreement
from tunefleet.trainer_control.distributed.shared_memory import Page
from tunefleet.trainer_control.distributed.step_agreement import Follower, Leader
from tunefleet.trainer_control.distributed.tcp_store import MAX_HORIZON, PeerLostError, StoreConnection
from tunefleet.trainer_control.process_identity import machine, process_started_at


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global PrefixStore, TCPStore
    pytest.importorskip("torch")

    from torch.distributed import PrefixStore, TCPStore


pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), wait_for_workers=False)


_number = iter(range(10**6))


def lines(store: TCPStore, size: int, timeout_s: float = 20.0) -> list[StoreConnection]:
    prefix = f"test/{next(_number)}"
    return [StoreConnection(PrefixStore(prefix, store.clone()), rank, size, timeout_s) for rank in range(size)]


def stumble(decider: Any, steps: int, seed: float, step_s: float, acted: list[tuple[int, str]]) -> None:
    rng = random.Random(seed)
    for step in range(1, steps + 1):
        if rng.random() < 0.1:
            time.sleep(rng.uniform(0, 20 * step_s))
        acted += [(step, command.command_id) for command in decider.due(step)]


def let_some_have_no_page(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Have so many ranks be elsewhere: they find no page of memory."""
    here, elsewhere = Page.find, iter(range(count))
    monkeypatch.setattr(Page, "find", lambda *told: here(*told) if next(elsewhere, None) is None else None)


@pytest.mark.parametrize(
    ("size", "step_s", "elsewhere"), [(2, 0.0, 0), (2, 0.0, 1), (3, 0.0, 0), (3, 0.002, 0), (3, 0.002, 1), (3, 0.0, 2)]
)
def test_ranks_act_together_however_far_apart_they_are(
    store: TCPStore, size: int, step_s: float, elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_some_have_no_page(monkeypatch, elsewhere)
    seed = random.random()
    print(f"seed {seed}")
    rng = random.Random(seed)
    steps = 20_000 if step_s == 0 else 150
    boards = [CommandQueue() for _ in range(size)]
    ends = lines(store, size)
    deciders = [Leader(boards[0], ends[0]), *(Follower(boards[n], ends[n]) for n in range(1, size))]
    acted: list[list[tuple[int, str]]] = [[] for _ in range(size)]
    walkers = [
        threading.Thread(target=stumble, args=(deciders[n], steps, rng.random(), step_s, acted[n])) for n in range(size)
    ]
    boards[rng.randrange(size)].submit("save_checkpoint", command_id="cmd-before")
    for walker in walkers:
        walker.start()
    asked = 0
    while any(walker.is_alive() for walker in walkers) and asked < 40:
        time.sleep(rng.uniform(0, 0.02))
        boards[rng.randrange(size)].submit("save_checkpoint", command_id=f"cmd-{asked}")
        asked += 1
    for walker in walkers:
        walker.join(60)
    assert acted == [acted[0]] * size
    names = [name for _, name in acted[0]]
    assert len(names) == len(set(names))
    assert names, "nothing was ever carried out"


def test_a_command_is_at_most_a_horizon_late(store: TCPStore) -> None:
    first, second = lines(store, 2)
    board = CommandQueue()
    leader, follower = Leader(board, first), Follower(CommandQueue(), second)
    for step in range(1, 200):
        if step == 150:
            board.submit("graceful_stop", command_id="cmd-1")
        ours, theirs = leader.due(step), follower.due(step)
        assert [item.command_id for item in ours] == [item.command_id for item in theirs]
        if ours:
            assert 150 < step <= 150 + MAX_HORIZON
            return
    pytest.fail("it was never carried out")


@pytest.mark.parametrize("elsewhere", [0, 1])
def test_what_was_decided_stays_decided_where_steps_become_longer(
    store: TCPStore, elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_some_have_no_page(monkeypatch, elsewhere)
    rng = random.Random(7)
    monkeypatch.setattr(step_agreement, "LONG_STEP_S", float("inf"))
    monkeypatch.setattr(step_agreement, "horizon_of", lambda step_s: rng.choice([1, 2, 8]))
    monkeypatch.setattr(shared_memory, "_RECEIVE_EVERY_S", 0.0)
    first, second = lines(store, 2)
    board = CommandQueue()
    leader, follower = Leader(board, first), Follower(CommandQueue(), second)
    ours: list[tuple[int, str]] = []
    theirs: list[tuple[int, str]] = []
    passed = 0
    for step in range(1, 2000):
        if rng.random() < 0.1:
            board.submit("save_checkpoint", command_id=f"cmd-{step}")
        ours += [(step, item.command_id) for item in leader.due(step)]
        # The other rank is as far ahead as it may be.
        while passed < leader._until:
            passed += 1
            theirs += [(passed, item.command_id) for item in follower.due(passed)]
    assert len(ours) > 100
    assert theirs[: len(ours)] == ours


class Counting(StoreConnection):
    """Counts the messages to the store."""

    sent: int = 0

    def set(self, key: str, value: bytes) -> None:
        self.sent += 1
        super().set(key, value)

    def look(self, key: str) -> bytes:
        self.sent += 1
        return super().look(key)

    def count(self, key: str, by: int = 0) -> int:
        self.sent += 1
        return super().count(key, by)


@pytest.mark.parametrize(("elsewhere", "at_most"), [(0, 0.2), (1, 4.0)])
def test_ranks_of_one_machine_need_no_message_at_a_step(
    store: TCPStore, elsewhere: int, at_most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_agreement, "horizon_of", lambda step_s: 1)
    monkeypatch.setattr(shared_memory, "_RECEIVE_EVERY_S", 0.0)
    let_some_have_no_page(monkeypatch, elsewhere)
    prefix = f"test/{next(_number)}"
    first, second = (Counting(PrefixStore(prefix, store.clone()), rank, 2, 20.0) for rank in range(2))
    leader, follower = Leader(CommandQueue(), first), Follower(CommandQueue(), second)
    for step in range(1, 10):
        assert (*leader.due(step), *follower.due(step)) == ()
    before = first.sent + second.sent
    for step in range(10, 210):
        assert (*leader.due(step), *follower.due(step)) == ()
    sent = (first.sent + second.sent - before) / 200
    assert sent <= at_most
    assert elsewhere == 0 or sent > 2, "what is counted are messages"


def test_what_a_rank_was_asked_for_before_it_began_is_carried_out(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_memory, "_RECEIVE_EVERY_S", 0.0)
    first, second = lines(store, 2)
    board = CommandQueue()
    leader, follower = Leader(CommandQueue(), first), Follower(board, second)
    board.submit("save_checkpoint", command_id="early")
    acted = []
    follower.due(1)
    for step in range(1, 40):
        ours = leader.due(step)
        assert [item.command_id for item in follower.due(step)] == [item.command_id for item in ours]
        acted += [item.command_id for item in ours]
    assert acted == ["early"]


def test_a_page_has_the_newest_entries_and_nothing_that_was_not_written() -> None:
    made = Page.make(4)
    assert made is not None
    page, address = made
    other = Page.find(address, 4)
    assert other is not None
    assert [other.get_free(number) for number in range(8)] == [None] * 8
    page.put(5, 17, False)
    assert (other.get_free(5), other.get_free(1), other.get_free(9), other.get_free(0)) == (17, None, None, None)
    assert page.put_free(9, 18)
    assert (other.get_free(5), other.get_free(9)) == (None, 18)
    page.put(9, 18, True)
    assert other.get_free(9) is None, "the store has commands with it"
    last_step, last_number = 2**31, 2**31 + 1
    page.put(last_number, last_step, False)
    assert other.get_free(last_number) == last_step, "a training of years"
    other.tell()
    assert not page.put_free(2, 19)
    assert other.get_free(2) is None
    assert page.take_flag()
    page.close()
    assert not page.take_flag()
    other.tell()
    assert (page.take_flag(), page.take_flag()) == (True, False), "whoever has it keeps it"
    assert Page.find(address, 4) is None


def test_a_page_of_another_process_or_machine_is_none(tmp_path: Path) -> None:
    made = Page.make(4)
    assert made is not None
    address = json.loads(made[1])
    (tmp_path / "other").write_bytes(b"x" * 4096)
    (tmp_path / "small").write_bytes(b"x")
    receiving, sending = os.pipe()
    with (tmp_path / "other").open("r+b") as other, (tmp_path / "small").open("r+b") as small:
        fds = [{"fd": number} for number in (other.fileno(), small.fileno(), receiving, sending)]
        for wrong in (*fds, {"token": address["token"] + 1}, {"host": "elsewhere"}, {"pid": 2**22}):
            assert Page.find(json.dumps(address | wrong).encode(), 4) is None


def test_ranks_of_a_system_without_such_memory_ask_their_store(
    store: TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    for lacks in (False, True):
        if lacks:
            monkeypatch.delattr(os, "memfd_create")
        else:
            monkeypatch.setattr(os, "memfd_create", refuse)
        first, second = lines(store, 2)
        board = CommandQueue()
        leader, follower = Leader(board, first), Follower(CommandQueue(), second)
        board.submit("save_checkpoint", command_id="cmd")
        acted = []
        for step in range(1, 30):
            ours = [item.command_id for item in leader.due(step)]
            assert [item.command_id for item in follower.due(step)] == ours
            acted += ours
        assert acted == ["cmd"]


def test_a_page_is_kept_open_until_every_rank_has_answered(store: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_RECEIVE_EVERY_S", 0.0)
    let_some_have_no_page(monkeypatch, 1)
    ends = lines(store, 3)
    before = files_open()
    leader, one, other = Leader(CommandQueue(), ends[0]), *(Follower(CommandQueue(), end) for end in ends[1:])
    for step in range(1, 6):
        leader.due(step)
        one.due(step)
    assert files_open() == before + 2, "its number and its mapping: the other one may still look for it"
    for step in range(2, 6):
        other.due(step)
    leader.due(6)
    assert files_open() == before + 1, "what the other one has mapped"


def files_open() -> int:
    """Count the files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_loop_that_asks_seldom_misses_nothing(store: TCPStore) -> None:
    first, second = lines(store, 2)
    board = CommandQueue()
    leader, follower = Leader(board, first), Follower(CommandQueue(), second)
    acted: list[tuple[int, str]] = []
    for number, step in enumerate(range(3, 900, 3)):
        if number % 10 == 0:
            board.submit("save_checkpoint", command_id=f"cmd-{number}")
        ours, theirs = leader.due(step), follower.due(step)
        assert [item.command_id for item in ours] == [item.command_id for item in theirs]
        acted += [(step, item.command_id) for item in ours]
    assert [name for _, name in acted] == [f"cmd-{number}" for number in range(0, 299, 10)]
    assert all(step <= 3 + 3 * int(name[4:]) + 3 * MAX_HORIZON for step, name in acted)


def test_an_abort_in_an_evaluation_is_due_at_once_and_the_rest_is_not_lost(store: TCPStore) -> None:
    (first, _) = lines(store, 2)
    board = CommandQueue()
    leader = Leader(board, first)
    leader.due(1)
    board.submit("save_checkpoint", command_id="save")
    assert leader.due(1) == []
    due = [item.command_id for step in range(2, 20) for item in leader.due(step)]
    assert due == ["save"]


def walk(decider: Leader | Follower, steps: int) -> None:
    for step in range(1, steps):
        decider.due(step)


def gone(line: StoreConnection, rank: int) -> None:
    """Have a rank be a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    me = {"host": machine(), "pid": process.pid, "started_at": process_started_at(process.pid)}
    line.set(f"process/{rank}", json.dumps(me).encode())
    process.kill()
    process.wait()


def test_a_rank_that_is_gone_is_named_and_waited_for_no_longer(store: TCPStore) -> None:
    first, second = lines(store, 2, timeout_s=600)
    follower = Follower(CommandQueue(), second)
    leader = Leader(CommandQueue(), first)
    leader.due(1)
    gone(first, 0)
    with pytest.raises(PeerLostError, match=r"Rank 0 is lost; rank 1 waited for the decision for step \d+"):
        walk(follower, 100)

    third, fourth = lines(store, 2, timeout_s=600)
    gone(fourth, 1)
    ahead = Leader(CommandQueue(), third)
    with pytest.raises(PeerLostError, match="Rank 1 is lost"):
        walk(ahead, 2000)


def test_silence_has_an_end_too(store: TCPStore) -> None:
    first, second = lines(store, 2, timeout_s=0.3)
    follower = Follower(CommandQueue(), second)
    Leader(CommandQueue(), first)
    follower.due(1)
    with pytest.raises(PeerLostError, match=r"Rank 0 did not send the decision for step 2 within 0 s"):
        follower.due(2)


def finishers(store: TCPStore, said: list[str], timeout_s: float = 20.0) -> list[CheckpointFinalizer]:
    made = []
    for line in lines(store, 2, timeout_s):
        finisher = CheckpointFinalizer(
            lambda: None,
            lambda saved, checkpoint: said.append(f"durable {checkpoint.path.name}"),
            lambda saved, error: said.append(f"failed {saved.path.name}: {error}"),
        )
        finisher.join_ranks(CheckpointCommit(line))
        made.append(finisher)
    return made


def test_a_checkpoint_is_whole_when_the_slowest_rank_has_written(store: TCPStore, tmp_path: Path) -> None:
    said: list[str] = []
    first, second = finishers(store, said)
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    first.submit(SavedCheckpoint(folder, 0.0))
    time.sleep(0.2)
    assert said == [], "rank 0 was done before rank 1 had its file"
    (folder / "rng_state_1.pth").write_text("random")
    second.submit(SavedCheckpoint(folder, 0.0))
    assert first.drain(10)
    assert second.drain(10)
    assert (first.is_whole(5), second.is_whole(5), said) == (True, True, ["durable checkpoint-5"])
    assert invalid_reason(folder) is None
    assert "rng_state_1.pth" in (folder / "manifest.json").read_text()
    (folder / "rng_state_1.pth").write_text("randem")
    assert invalid_reason(folder) == "rng_state_1.pth does not match its digest"


def test_all_ranks_stay_where_rank_0_cannot_leave(store: TCPStore) -> None:
    first, second = finishers(store, [])
    heard: list[bool] = []
    for says in (False, True):
        other = threading.Thread(target=lambda: heard.append(second.agree(True)))
        other.start()
        assert first.agree(says) is says
        other.join(10)
    assert heard == [False, True]


def test_a_checkpoint_without_the_part_of_a_lost_rank_is_none(
    store: TCPStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalizer, "_SEEN_S", 0.1)
    said: list[str] = []
    first, _ = finishers(store, said, timeout_s=0.3)
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights")
    first.submit(SavedCheckpoint(folder, 0.0))
    assert first.drain(20)
    assert not first.is_whole(5)
    assert said == ["failed checkpoint-5: Rank 1 did not send the digests of checkpoint 1 within 0 s; rank 0 gave up."]
    assert not (folder / "manifest.json").exists()
