"""Checkpoints of a PPO training: policy, value model, optimizer, random state, place; resumed from exactly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from trl.experimental.ppo.ppo_trainer import OnlineTrainerState

from tunefleet.workloads.training.checkpoint_compression import left_alone, opened

VALUE_FILE = "value_model.safetensors"
_STATE = "trainer_state.json"


def write_value_model(trainer: Any) -> None:
    """Write the value model into the checkpoint of this step; the policy is written by the trainer."""
    folder = Path(trainer.args.output_dir) / f"checkpoint-{trainer.state.global_step}"
    folder.mkdir(parents=True, exist_ok=True)
    trained = {name: each for name, each in _value_model(trainer).named_parameters() if each.requires_grad}
    save_file({name: each.detach().cpu().contiguous().clone() for name, each in trained.items()}, folder / VALUE_FILE)


def restore(trainer: Any, folder: Path) -> None:
    """Put a trainer where it was when a checkpoint was saved."""
    load_policy(trainer, folder)
    weights = load_file(folder / VALUE_FILE)
    parameters = dict(_value_model(trainer).named_parameters())
    with torch.no_grad():
        for name, value in weights.items():
            parameters[name].copy_(value)
    state = OnlineTrainerState.load_from_json(str(folder / _STATE))
    limits = ("max_steps", "num_train_epochs", "logging_steps", "save_steps", "eval_steps", "train_batch_size")
    for name in limits:
        # What the spec says now counts, with what was set since.
        setattr(state, name, getattr(trainer.state, name))
    state.is_local_process_zero = trainer.is_local_process_zero()
    state.is_world_process_zero = trainer.is_world_process_zero()
    trainer.state = state
    trainer._load_callback_state()
    trainer._load_optimizer_and_scheduler(str(folder))
    trainer._load_rng_state(str(folder))


def load_policy(trainer: Any, folder: Path) -> None:
    """Take the weights of the policy from a checkpoint."""
    policy = trainer.accelerator.unwrap_model(trainer.model).policy
    if isinstance(policy, PeftModel):
        set_peft_model_state_dict(policy, load_file(folder / "adapter_model.safetensors"))
        return
    loaded = type(policy).from_pretrained(folder, dtype=policy.dtype)
    policy.load_state_dict(loaded.state_dict())


def load_best(trainer: Any) -> None:
    """Take the policy of the best checkpoint; says in `best_missing` if it is gone."""
    if trainer._writer is not None:
        trainer._writer.wait()  # the best may be the last, which is just being written
    best = Path(str(trainer.state.best_model_checkpoint))
    with left_alone():
        trainer.accelerator.wait_for_everyone()
        folder = opened(best, best.parent.parent / "inputs")
        trainer.best_missing = not (folder / VALUE_FILE).exists()
        if not trainer.best_missing:
            load_policy(trainer, folder)
        trainer.accelerator.wait_for_everyone()
    if folder != best:
        shutil.rmtree(folder, ignore_errors=True)


def _value_model(trainer: Any) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model).value_model
