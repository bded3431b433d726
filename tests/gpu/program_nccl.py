"""What two ranks on two GPUs do: queue work far ahead of what the devices have done, and never wait for them."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist

from tunefleet import trainer_control
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.distributed.step_agreement import coordinator_for


def main(folder: Path) -> None:
    """Take steps until all ranks stop at the same one; if they did not, the collectives would never end."""
    session = trainer_control.open_session(folder)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    rank, rng = dist.get_rank(), random.Random(session.job["spec"]["seed"])
    board = CommandQueue()
    decider = coordinator_for(board)
    if rank == session.job["spec"]["asked"]:
        threading.Thread(target=_ask, args=(board, rng.uniform(1.0, 3.0)), daemon=True).start()
    work = torch.randn(2048, 2048, device="cuda")
    total = torch.zeros(1 << 20, device="cuda")
    acted: list[tuple[int, str]] = []
    for step in range(1, 10**6):
        for _ in range(1 + 8 * rank):  # one device is slower: its processor is held up later
            work = torch.nn.functional.normalize(work @ work)
        dist.all_reduce(total)
        acted += [(step, command.command) for command in decider.due(step)]
        if any(name == "graceful_stop" for _, name in acted):
            break
    torch.cuda.synchronize()
    every: list[list[tuple[int, str]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, acted)
    if session.leads:
        (folder / "acted.json").write_text(json.dumps(every))
    dist.destroy_process_group()


def _ask(board: CommandQueue, after_s: float) -> None:
    for number in range(10):
        time.sleep(after_s / 10)
        board.submit("save_checkpoint", command_id=f"save-{number}")
    board.submit("graceful_stop", command_id="stop")
