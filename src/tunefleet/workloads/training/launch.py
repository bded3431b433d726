"""One process start of a training run: its spec, its folder, and overrides from earlier launches."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from tunefleet.errors import InputError
from tunefleet.spec import ModelTrainingSpec, Parallelism, TrainingTaskSpec
from tunefleet.trainer_control.files import read_json
from tunefleet.workloads.common.job import OpenedJob, open_task
from tunefleet.workloads.distributed import ranks

_SHARE = "TUNEFLEET_GPU_MEMORY_FRACTION"
_BATCH = ("batch_size", "gradient_accumulation_steps")

SpecT = TypeVar("SpecT", bound=ModelTrainingSpec)


@dataclass(frozen=True, slots=True)
class Launch(OpenedJob[SpecT]):
    """One process start of a training run; its spec includes the batch size of a retry after running out of memory.

    Args:
        overrides: Settings changed since the spec was written.
    """

    clock: Clock
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> dict[str, Any]:
        """The overrides as listed in the result."""
        return {name: value for name, value in self.overrides.items() if name != "after"}

    @property
    def parallelism(self) -> Parallelism:
        """How the devices share the work."""
        return self.spec.training.strategy(ranks.count())

    @property
    def shares_weights(self) -> bool:
        """Whether weights are sharded across processes, or are created together with the optimizer."""
        return self.parallelism in {"fsdp", "deepspeed"}

    @property
    def baseline(self) -> Path:
        """The file with the evaluation before training, kept for later launches."""
        return self.folder.root / "baseline.json"

    @property
    def product(self) -> Path:
        """The folder of the trained adapter or model."""
        return self.folder.root / self.spec.product


Supervised = Launch[TrainingTaskSpec]


def open_launch(folder: Path, wanted: type[SpecT]) -> Launch[SpecT]:
    """Open the launch of a job folder, with the overrides of earlier launches applied."""
    task = open_task(folder, wanted)
    spec, session = task.spec, task.session
    overrides = read_json(task.folder.overrides_json) or {}
    sizes = {name: int(overrides[name]) for name in _BATCH if name in overrides}
    if sizes:
        spec = spec.model_copy(update={"training": spec.training.model_copy(update=sizes)})
        batch, times = spec.training.batch_size, spec.training.gradient_accumulation_steps
        text = (
            f"An earlier launch ran out of memory: this one uses a batch size of {batch} "
            f"with {times} gradient accumulation steps."
        )
        session.journal.event("training.batch_halved", text, "warning", sizes)
    if overrides.get("rollbacks"):
        text = f"An earlier launch diverged: this one continues with learning rate {overrides['learning_rate']:g}."
        data = {name: overrides[name] for name in ("learning_rate", "rollbacks")}
        session.journal.event("training.rolled_back", text, "warning", data)
    return Launch(task.job, spec, task.folder, session, Clock(), overrides)


def limit_gpu_memory(environment: Mapping[str, str] = os.environ) -> float | None:
    """Limit this process to a fraction of each GPU's memory, if the job's environment sets one."""
    text = environment.get(_SHARE, "")
    if not text:
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise InputError(f"{_SHARE} is {text!r}.", hint="Use a number above 0 and up to 1.")
    if not torch.cuda.is_available():
        return None
    for device in range(torch.cuda.device_count()):
        torch.cuda.set_per_process_memory_fraction(share, device)
    return share


class Clock:
    """Sums up the durations of the parts of a launch."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._parts: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the code inside the `with` block."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._parts[name] = self._parts.get(name, 0.0) + time.monotonic() - started

    def seconds(self) -> dict[str, float]:
        """Return the parts and the total so far, in seconds."""
        total = time.monotonic() - self._started
        return {f"{name}_s": round(value, 3) for name, value in [*self._parts.items(), ("total", total)]}
