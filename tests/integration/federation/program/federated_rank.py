"""What a user starts by torchrun: a Trainer with the callback; what each rank has come to lies in files."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from tests.integration.federation.training import At, Unhurried, Watch, arrived, digest, rows, sent, trainer, until
from tunefleet import FederatedCallback
from tunefleet.workloads.federated.live_adapter import LiveAdapter

STEPS = 20


class Digests(TrainerCallback):
    """Notes what the adapter is after each step."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.seen[state.global_step] = digest(kwargs["model"])


def note(folder: Path, name: str, value: Any) -> None:
    """Leave something for the test."""
    part = folder / f".{name}-{os.environ['RANK']}"
    part.write_text(json.dumps(value))
    part.rename(folder / f"{name}-{os.environ['RANK']}.json")


def main(folder: Path, url: str, federation: str, token: str, options: dict[str, Any]) -> None:
    """Train with a version that comes in on the way, unless the test wants none."""
    leads = os.environ["RANK"] == "0"
    crash_at = options.pop("crash_at", None)
    resume = options.pop("resume", False)
    straight = options.pop("straight", False)
    callback = FederatedCallback(url, federation, "two-ranks", token if leads else None, **options)
    digests, watch = Digests(), Watch(callback)
    steps: list[TrainerCallback] = [Unhurried(callback)]
    if leads and not straight:
        steps.append(At(5, lambda: until(arrived(callback))))
    if leads and crash_at is not None:
        steps.append(At(crash_at, lambda: until(sent(callback, 1))))
    if crash_at is not None:
        steps.append(At(crash_at, lambda: os._exit(3)))
    made = trainer(
        folder / "out",
        callback,
        digests,
        watch,
        *steps,
        data=rows(31),
        max_steps=STEPS,
        per_device_train_batch_size=3,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=6,
    )
    seen: list[int] = []
    step = made.training_step

    def counted(model: Any, inputs: Any, *more: Any) -> Any:
        seen.append(len(inputs["input_ids"]))
        return step(model, inputs, *more)

    made.training_step = counted  # type: ignore[method-assign]
    made.train(resume_from_checkpoint=resume or None)
    note(folder, "digests", digests.seen)
    note(folder, "versions", watch.versions)
    note(folder, "rows", sum(seen))
    note(folder, "held", watch.objects() == watch.held())
    note(folder, "last", {name: tensor.tolist() for name, tensor in LiveAdapter(made.model).tensors.items()})


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:5], json.loads(sys.argv[5]))
