"""What a user starts by torchrun: a plain Trainer with the public callback, and nothing else of ours."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import lean  # noqa: F401 -- before transformers
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.integration.trainer_control.tiny import ROWS, digest, tiny_model
from tunefleet import TrainerControlCallback

STEPS = 24


class Slow(TrainerCallback):
    """Takes its time, so that somebody can ask for something."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.05)


def train(output: Path, *callbacks: TrainerCallback, resume: bool = False) -> str:
    """Train, and return what the weights are."""
    args = TrainingArguments(
        output_dir=str(output),
        max_steps=STEPS,
        logging_steps=4,
        save_strategy="no",
        per_device_train_batch_size=2,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        model=tiny_model(),
        args=args,
        train_dataset=ROWS,  # type: ignore[arg-type]
        callbacks=list(callbacks),
    )
    trainer.train(resume_from_checkpoint=resume or None)
    return digest(trainer.model)


def main(folder: Path, *, resume: bool) -> None:
    """Train without the callback before, to compare with; then with it."""
    if not resume:
        note(folder, "bare", train(folder / "bare"))
    note(folder, "ours", train(folder / "ours", Slow(), TrainerControlCallback(job_id="two"), resume=resume))
    # As torch asks for: without it a rank aborts at its end now and then, with the bare Trainer too (4 of 120).
    torch.distributed.destroy_process_group()


def note(folder: Path, name: str, text: str) -> None:
    """Leave for the test what this rank has come to."""
    part = folder / f".{name}-{os.environ['RANK']}"
    part.write_text(text)
    part.rename(folder / f"{name}-{os.environ['RANK']}")


def in_children(folder: Path, ports: list[str]) -> int | None:
    """Return the number of the launch that this process is; in the parent None, when all are done.

    Each is a process of its own, with a store of its own, forked when the libraries are imported: that takes longest.
    """
    for number, port in enumerate(ports):
        while number and not (folder / "go").exists():
            time.sleep(0.02)
        if (pid := os.fork()) == 0:
            os.environ.update(MASTER_PORT=port, TORCHELASTIC_USE_AGENT_STORE="False")
            return number
        note(folder, f"ended-{number}", str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    return None


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if (mine := in_children(place, sys.argv[2:])) is not None:
        main(place, resume=mine > 0)
