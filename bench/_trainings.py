"""A small training with some callbacks, its clock, and the meter of callbacks: one measure for several benchmarks."""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet.workloads import assets

STEP_BUDGET_S = 0.020
SHARE_BUDGET = 0.01
RATIO_BUDGET = 1.01
WARM_UP_STEPS = 5
ONCE = ("on_init_end", "on_train_begin", "on_train_end")
"""Events that a training has once, and no step."""
EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Random tokens of one length; what they say does not change what a step costs."""

    def __init__(self, count: int, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self._ids = torch.randint(6, 2000, (count, length), generator=generator)

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._ids[index], "labels": self._ids[index]}


class StepClock(TrainerCallback):
    """Notes when each step ends, on the wall and in processor time; part of all that is compared."""

    def __init__(self) -> None:
        self._ended: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ended.append((time.monotonic(), time.process_time()))

    def longest_s(self, since: float, until: float) -> float:
        """Return how long the longest of the steps took that were under way in some time of `time.monotonic`."""
        ended = [wall for wall, _ in self._ended]
        under_way = ended[max(bisect(ended, since) - 1, 0) : bisect(ended, until) + 1]
        return max((after - before for before, after in pairwise(under_way)), default=0.0)

    @property
    def medians_s(self) -> tuple[float, float]:
        """Median time from one end of a step to the next, warm-up left out: wall, processor."""
        ended = np.array(self._ended[WARM_UP_STEPS:])
        wall, processor = np.median(np.diff(ended, axis=0), axis=0)
        return float(wall), float(processor)


class Meter:
    """Adds up the time inside callbacks, by callback and event."""

    def __init__(self, callbacks: Sequence[TrainerCallback]) -> None:
        self.spent_s: dict[tuple[str, str], float] = defaultdict(float)
        self.others_s = 0.0
        for callback in callbacks:
            for event in EVENTS:
                if getattr(type(callback), event) is getattr(TrainerCallback, event):
                    continue  # what a class does not define costs the bare Trainer as much
                setattr(callback, event, self._timed(getattr(callback, event), type(callback).__name__, event))

    def _timed(self, call: Callable[..., Any], owner: str, event: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return call(*args, **kwargs)
            finally:
                self.spent_s[owner, event] += time.thread_time() - started

        return timed


def training(
    folder: Path,
    steps: int,
    callbacks: Sequence[TrainerCallback],
    *,
    jit: bool = False,
    prepare: Callable[[Trainer], None] = lambda _: None,
) -> StepClock:
    """Run one training, `jit` with the Trainer's own checkpoint on SIGTERM; returns its clock."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(str(assets.locate("builtin:gsm8k-llama-2m", "model")))
    clock = StepClock()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder / "checkpoints"),
            max_steps=steps,
            per_device_train_batch_size=1,
            logging_steps=1,
            save_strategy="no",
            enable_jit_checkpoint=jit,
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            ddp_find_unused_parameters=False,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Rows(steps, 48),
        callbacks=[*callbacks, clock],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    prepare(trainer)
    trainer.train()
    return clock


def others_s() -> float:
    """Return how long Python's threads beside this one, which live now, have had a processor so far."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    idents = [thread.ident for thread in others if thread.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)
