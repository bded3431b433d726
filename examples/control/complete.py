"""A complete script: evaluation, the best model, a journal, and a resume from the newest checkpoint.

python examples/control/complete.py            # control it from another terminal, see README.md
python examples/control/complete.py --resume   # after `tunefleet control pause complete`
"""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from tunefleet import TrainerControlCallback
from tunefleet.trainer_control import newest_valid

logger = logging.getLogger("example")
OUTPUT = Path("control-complete")


def rows(count: int, seed: int) -> list[dict[str, torch.Tensor]]:
    """Return counting exercises: each row counts up with its own step."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(0, 64, (count, 2), generator=generator)
    found = [(int(start) + torch.arange(32) * (1 + int(step) % 3)) % 64 for start, step in starts]
    return [{"input_ids": tokens, "labels": tokens} for tokens in found]


def main() -> None:
    """Train, evaluate, and keep the best model, under control from another terminal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resume", action="store_true", help="resume from the newest complete checkpoint")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--debug", action="store_true", help="log the control server")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    if options.debug:
        logging.getLogger("tunefleet.control").setLevel(logging.DEBUG)

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    args = TrainingArguments(
        output_dir=str(OUTPUT),
        max_steps=options.steps,
        learning_rate=1e-3,
        per_device_train_batch_size=8,
        logging_steps=100,
        logging_first_step=True,
        eval_strategy="steps",
        eval_steps=500,
        save_strategy="steps",
        save_steps=500,
        save_total_limit=3,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to=[],
        disable_tqdm=True,
    )
    control = TrainerControlCallback(
        job_id="complete",
        port=None,  # chosen by the system; `tunefleet control curl complete status` shows it
        host="localhost",
        enable_http=True,  # False: commands are read from files
        cleanup_on_exit=True,
        token="auto",
        journal=True,  # ./tunefleet-runs/complete
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=rows(4096, seed=1),
        eval_dataset=rows(128, seed=2),
        callbacks=[control],
    )
    # The newest one whose files match its manifest: a killed save leaves an incomplete folder.
    newest = newest_valid(OUTPUT, set_aside=False) if options.resume else None
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)
    # Not reached after an abort or a pause, which end the process.
    trainer.save_model(str(OUTPUT / "final"))
    logger.info("Saved %s at step %d.", OUTPUT / "final", trainer.state.global_step)


if __name__ == "__main__":
    main()
