"""What the ranks of a test job do: a loop that only asks what is due, or a real Trainer under DDP or FSDP."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import lean  # noqa: F401 -- before transformers
import torch
import torch.distributed as dist

from tunefleet import trainer_control
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.distributed.step_agreement import Collective, coordinator_for, cpu_group


def main(folder: Path) -> None:
    """Do what the spec says."""
    session = trainer_control.open_session(folder)
    options = dict(session.job["spec"])
    {"loop": loop, "train": train}[options.pop("do")](session, **options)


def note(session: trainer_control.JobSession, name: str, value: Any) -> None:
    """Leave something for the test; by rank 0."""
    if session.leads:
        part = session.folder / f".{name}.part"
        part.write_text(json.dumps(value))
        part.rename(session.folder / f"{name}.json")


def loop(session: trainer_control.JobSession, steps: int, seed: int, lost: int | None = None) -> None:
    """Ask what is due without ever waiting for each other: each rank is now fast, now slow.

    Args:
        session: Of the job.
        steps: How many.
        seed: Of what is random.
        lost: This rank is killed after its steps, when the others wait for it in a collective.
    """
    dist.init_process_group("gloo")
    rank, rng = dist.get_rank(), random.Random(seed * 1000 + int(os.environ["RANK"]))
    board = CommandQueue(None)
    decider = coordinator_for(board)
    asker = threading.Thread(target=_ask, args=(board, rng.random(), rank))
    asker.start()
    acted = _walk(decider, steps, rng, 0.002)
    asker.join()
    every: list[Any] = [None] * dist.get_world_size()
    if lost is not None:
        dist.all_gather_object(every, acted)
        note(session, "acted", every)
        dist.barrier()
    if rank == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    fallback, slow = CommandQueue(None), random.Random(rank)
    collective = Collective(fallback, cpu_group())
    fallback.submit("save_checkpoint", command_id=f"fallback-{rank}")
    acted += _walk(collective, 30, slow, 0.001)
    dist.all_gather_object(every, acted)
    note(session, "acted", every)
    dist.destroy_process_group()


def _ask(board: CommandQueue, seed: float, rank: int) -> None:
    rng = random.Random(seed)
    for number in range(5):
        time.sleep(rng.uniform(0, 0.1))
        board.submit("save_checkpoint", command_id=f"rank-{rank}-{number}")


def _walk(decider: Any, steps: int, rng: random.Random, pause_s: float) -> list[tuple[int, str]]:
    acted = []
    for step in range(1, steps + 1):
        if rng.random() < 0.3:
            time.sleep(rng.uniform(0, 10 * pause_s))
        acted += [(step, command.command_id) for command in decider.due(step)]
    return acted


def train(session: trainer_control.JobSession, *, baseline: bool, at: list[Any] | None = None, **options: Any) -> None:
    """Train with our callbacks; with `baseline` the same without them before, from beginning to end.

    Args:
        session: Of the job.
        baseline: Whether to train without callbacks first.
        at: Step, rank and command that this rank is asked for during the step.
        options: Of the trainer.
    """
    if baseline:
        bare = {name: value for name, value in options.items() if not name.startswith("save_")}
        trainer = _trainer(str(session.folder / "bare"), [], **bare)
        trainer.train()
        note(session, "bare", _digest(trainer))
    callbacks = trainer_control.callbacks_for_job(session.folder)
    if at is not None:
        callbacks.insert(0, _asking(callbacks, *at))
    trainer = _trainer(str(session.checkpoints_dir), callbacks, **options)
    trainer.train(resume_from_checkpoint=str(session.resume.path) if session.resume else None)
    note(session, "trained", _digest(trainer))
    # What a user's script does after the training; after a pause it must not come to this.
    trainer.save_model(str(session.folder / "final"))


def _asking(callbacks: list[Any], step: int, rank: int, command: str) -> Any:
    from transformers import TrainerCallback

    board = callbacks[0]._board

    class Asking(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step - 1 and dist.get_rank() == rank:
                if command == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                signal.signal(signal.SIGUSR2, lambda *_: board.submit(command, command_id="cmd-1"))
                os.kill(os.getpid(), signal.SIGUSR2)

    return Asking()


def _trainer(output_dir: str, callbacks: list[Any], *, fsdp: bool = False, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    set_seed(7)
    rng = torch.Generator().manual_seed(1)
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (96, 12), generator=rng)]
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        attention_dropout=0.1,
    )
    more: dict[str, Any] = {"fsdp": True, "fsdp_config": options.pop("fsdp_config", {})} if fsdp else {}
    args = TrainingArguments(
        output_dir=output_dir,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=5,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
        seed=7,
        ddp_find_unused_parameters=False,
        **more,
        **{"save_strategy": "no", **options},
    )
    if fsdp:
        from tunefleet.workloads.distributed.ranks import allow_sharding_on_cpu

        allow_sharding_on_cpu()
    return Trainer(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=rows,  # type: ignore[arg-type]
        eval_dataset=rows[:8],  # type: ignore[arg-type]
        callbacks=callbacks,
    )


def _digest(trainer: Any) -> str:
    weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    digest = hashlib.sha256()
    for name in sorted(weights or {}):
        digest.update(name.encode() + weights[name].detach().cpu().numpy().tobytes())
    return digest.hexdigest()
