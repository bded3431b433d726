"""A tiny model in a real Trainer, steered by the callback that anybody's script uses."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet import TrainerControlCallback
from tunefleet.trainer_control.control.command_queue import Command

ROWS = [{"input_ids": torch.arange(8) + n % 8, "labels": torch.arange(8) + n % 8} for n in range(32)]


class At(TrainerCallback):
    """Does something once, during a step."""

    def __init__(self, step: int, act: Callable[[], Any]) -> None:
        self.step, self.act = step, act

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            self.act()


class Rates(TrainerCallback):
    """Notes the learning rate of every step."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.seen[state.global_step + 1] = float(optimizer.param_groups[0]["lr"])


def tiny_config(**more: Any) -> LlamaConfig:
    """Return what a model is made of that trains in a moment."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(vocab_size=32, **sizes, **more)


def tiny_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    # Dropout makes a training depend on the random state.
    return LlamaForCausalLM(tiny_config(attention_dropout=0.2))


def digest(model: Any) -> str:
    """Return one number for all the weights."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Script:
    """What a user's script is: a Trainer with the callback, trained and saved."""

    def __init__(self, output: Path, *extra: TrainerCallback, **options: Any) -> None:
        own = {
            name: options.pop(name) for name in list(options) if name in TrainerControlCallback.__init__.__kwdefaults__
        }
        names = ("job_id", "port", "host", "enable_http", "cleanup_on_exit", "token")
        own.update({name: options.pop(name) for name in names if name in options})
        self.control = TrainerControlCallback(**{"job_id": "mine", **own})
        self.output = output
        arguments: dict[str, Any] = {"max_steps": 8, "logging_steps": 2, "save_strategy": "no", **options}
        self.args = TrainingArguments(
            output_dir=str(output),
            per_device_train_batch_size=4,
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            **arguments,
        )
        self.trainer = Trainer(
            model=tiny_model(),
            args=self.args,
            train_dataset=ROWS,  # type: ignore[arg-type]
            eval_dataset=ROWS[:4],  # type: ignore[arg-type]
            callbacks=[self.control, *extra],
        )

    def ask(self, step: int, command: str, data: dict[str, Any] | None = None, command_id: str = "cmd-1") -> None:
        """Have a command asked for during a step."""
        self.trainer.add_callback(At(step, lambda: self.board.submit(command, data, command_id)))

    def run(self, *, resume: bool = False) -> str:
        """Train and save the model; return what its weights are."""
        self.trainer.train(resume_from_checkpoint=resume or None)
        self.trainer.save_model(str(self.output / "final"))
        return digest(self.trainer.model)

    def end(self) -> None:
        """Do what the end of the process would do."""
        if self.control._job is not None:
            self.control._job.on_exit()

    @property
    def board(self) -> Any:
        assert self.control._job is not None
        return self.control._job.board

    @property
    def status(self) -> dict[str, Any]:
        assert self.control._job is not None
        return dict(self.control._job.status.fields)

    def outcome(self, command_id: str = "cmd-1") -> Command:
        item = self.board.state(command_id)
        assert item is not None
        return item

    def saved(self) -> list[str]:
        """Return what lies in the output folder."""
        return sorted(path.name for path in self.output.iterdir()) if self.output.is_dir() else []
