"""Trainings of the shipped model with an adapter, as a user's script has them, and what a test does in their midst."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet import FederatedCallback
from tunefleet.workloads import assets
from tunefleet.workloads.federated.live_adapter import LiveAdapter

MODEL = str(assets.locate("builtin:gsm8k-llama-2m", "model"))
LIMIT_S = 60.0


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so; a minute passes only if it never will be."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def rows(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Return sequences of tokens that can be learnt by heart."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, 2000, (count, 12), generator=generator)
    return [{"input_ids": each, "labels": each} for each in ids]


def adapted(seed: int = 1, **lora: Any) -> Any:
    """Return the shipped model with a new adapter."""
    model = AutoModelForCausalLM.from_pretrained(MODEL)
    torch.manual_seed(seed)
    given = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], "task_type": TaskType.CAUSAL_LM, **lora}
    return get_peft_model(model, LoraConfig(**given))


def trainer(
    output: Path,
    *callbacks: TrainerCallback,
    data: Any = None,
    held_out: Any = None,
    model: Any = None,
    **options: Any,
) -> Trainer:
    """Return a trainer as a script would make it."""
    given: dict[str, Any] = {
        "max_steps": 12,
        "per_device_train_batch_size": 4,
        "learning_rate": 5e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        **options,
    }
    args = TrainingArguments(
        output_dir=str(output),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        **given,
    )
    return Trainer(
        model=model if model is not None else adapted(),
        args=args,
        train_dataset=rows(16) if data is None else data,  # type: ignore[arg-type]
        eval_dataset=held_out,
        callbacks=list(callbacks),
    )


class At(TrainerCallback):
    """Does something before a step; for the step behind the last one, when the training ends."""

    def __init__(self, step: int, act: Callable[[], Any]) -> None:
        self.step, self.act = step, act

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step - 1:
            self.act()


class Watch(TrainerCallback):
    """Notes after each step what the adapter and the optimizer are, and the version that is in."""

    def __init__(self, federated: FederatedCallback) -> None:
        self.federated = federated
        self.values: dict[int, dict[str, torch.Tensor]] = {}
        self.versions: dict[int, int] = {}
        self.live: Any = None
        self.optimizer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.live, self.optimizer = LiveAdapter(kwargs["model"], "default"), kwargs["optimizer"]
        self.values[state.global_step] = self.live.copied()
        self.versions[state.global_step] = self.federated.version

    def objects(self) -> set[int]:
        return {id(each) for each in self.live.trained.values()}

    def held(self) -> set[int]:
        return {id(each) for group in self.optimizer.param_groups for each in group["params"]}


def arrived(federated: FederatedCallback) -> Callable[[], bool]:
    """Return a condition: something waits for the end of the step."""
    return lambda: bool(federated._participation is not None and federated._participation._mailbox.armed)


def sent(federated: FederatedCallback, count: int) -> Callable[[], bool]:
    """Return a condition: so many updates were taken."""
    return lambda: len(federated.sent) >= count


class Unhurried(TrainerCallback):
    """Waits before each step until nothing is on its way: an update that still is when the next is due joins it."""

    def __init__(self, federated: FederatedCallback) -> None:
        self.federated = federated

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        courier = self.federated._participation._session if self.federated._participation is not None else None
        if courier is not None and courier._uploader is not None:
            assert courier._uploader.drain(LIMIT_S)


def digest(model: Any) -> str:
    """Return one number for the weights of an adapter."""
    found = hashlib.sha256()
    for name, tensor in LiveAdapter(model, "default").tensors.items():
        found.update(name.encode() + tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def losses(made: Trainer) -> dict[int, float]:
    """Return the loss of every step."""
    return {entry["step"]: entry["loss"] for entry in made.state.log_history if "loss" in entry}


class Crash(Exception):
    """What a killed process would be."""


def crash() -> None:
    raise Crash
