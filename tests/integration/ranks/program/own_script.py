"""What a user starts by torchrun: a plain Trainer with the public callback, and nothing else of ours."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from transformers import Trainer, TrainerCallback, TrainingArguments

from tests.integration.attach.tiny import ROWS, digest, tiny_model
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


def note(folder: Path, name: str, weights: str) -> None:
    """Leave for the test what this rank has come to."""
    (folder / f"{name}-{dist.get_rank()}").write_text(weights)


if __name__ == "__main__":
    main(Path(sys.argv[1]), resume="resume" in sys.argv)
