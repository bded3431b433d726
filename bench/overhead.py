"""What our callbacks cost a training, beside the bare Hugging Face Trainer.

    python bench/overhead.py            # about three minutes
    python bench/overhead.py --quick    # about half a minute; wider interval

Two questions, one run:

1. How long is the training thread inside our callbacks (journal, checkpoints, control) in each step? Every method of
   theirs is timed by the thread's own processor time, so that other work on the machine does not count; loss and
   learning rate are logged at every step, which is the worst case. Budget: 1 % of a step of 20 ms.
2. How much longer does the training take with them? The same model on the same data with the same seed, with and
   without, in pairs that take turns in who comes first. The ratio is of the median steps of a pair, once by the clock
   on the wall and once by the processor time of all threads; the interval is a bootstrap over pairs. Budget: 1.01.

Beside them, in the same turns, the Trainer with what it brings itself for a training that is to survive a signal: its
checkpoint on SIGTERM (`enable_jit_checkpoint`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from _common import interval, status, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, version_here
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet import attach
from tunefleet.programs import assets

STEP_BUDGET_S = 0.020
SHARE_BUDGET = 0.01
RATIO_BUDGET = 1.01
WARM_UP_STEPS = 5
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
    """Notes when each step ends, on the wall and in processor time; part of both sides of the comparison."""

    def __init__(self) -> None:
        self._ended: list[tuple[float, float]] = []

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ended.append((time.perf_counter(), time.process_time()))

    @property
    def medians_s(self) -> tuple[float, float]:
        """Median time from one end of a step to the next, warm-up left out: wall, processor."""
        ended = np.array(self._ended[WARM_UP_STEPS:])
        wall, processor = np.median(np.diff(ended, axis=0), axis=0)
        return float(wall), float(processor)


class Meter:
    """Adds up the time inside callbacks, by callback and event."""

    def __init__(self, callbacks: list[TrainerCallback]) -> None:
        self.spent_s: dict[tuple[str, str], float] = defaultdict(float)
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


def training(folder: Path, steps: int, callbacks: list[TrainerCallback], *, jit: bool = False) -> StepClock:
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
    trainer.train()
    return clock


def watched(root: Path, steps: int, number: int, *, meter: bool = False) -> tuple[StepClock, Meter | None]:
    """Run one training in a job folder of its own, with our callbacks."""
    folder = root / f"job-{number}"
    folder.mkdir()
    job = {"job_id": folder.name, "launch": "launch", "attempt": 1, "endpoint_dir": str(root / "endpoints")}
    (folder / "job.json").write_text(json.dumps(job))
    callbacks = attach.callbacks_for_job(folder)
    measured = Meter(callbacks) if meter else None
    clock = training(folder, steps, callbacks)
    attach.open_session(folder).close()
    return clock, measured


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    pairs, steps = (6, 40) if options.quick else (24, 100)
    with tempfile.TemporaryDirectory(prefix="tunefleet-bench-") as name:
        root = Path(name)
        training(root / "warm-up", 2 * WARM_UP_STEPS, [])
        _, meter = watched(root, steps, 0, meter=True)
        bare: list[tuple[float, float]] = []
        ours: list[tuple[float, float]] = []
        jit: list[tuple[float, float]] = []
        for pair in range(pairs):
            # Who comes first takes turns: what the first run warms up must not help one side.
            sides: list[Callable[[], None]] = [
                lambda: bare.append(training(root / "bare", steps, []).medians_s),
                lambda number=pair + 1: ours.append(watched(root, steps, number)[0].medians_s),  # type: ignore[misc]
                lambda: jit.append(training(root / "jit", steps, [], jit=True).medians_s),
            ]
            for side in [*sides[pair % 3 :], *sides[: pair % 3]]:
                side()
            print(f"  pair {pair + 1} of {pairs}", flush=True)
    assert meter is not None
    told = Report("overhead", quick=options.quick)
    status_ = report(meter, steps, bare, ours, told)
    beside(ours, jit, told)
    told.write(options.json)
    return status_


def beside(ours: list[tuple[float, float]], jit: list[tuple[float, float]], told: Report) -> None:
    """Print and write our steps beside those of the Trainer with its checkpoint on a signal."""
    mine, theirs = ([1e3 * wall for wall, _ in side] for side in (ours, jit))
    ratio = Ratio.of([a / b for a, b in zip(mine, theirs, strict=True)])
    told.row(
        "step with all callbacks, wall time", Figure.of(mine, "ms"),
        Peer.of("Trainer with enable_jit_checkpoint", version_here("transformers"), theirs, "ms"),
        ratio=ratio, samples=len(mine), note="it saves at SIGTERM, and can be told nothing else",
    )  # fmt: skip
    print(
        f"With our callbacks ÷ Trainer with enable_jit_checkpoint, wall: {ratio.median:.4f}, "
        f"95 % interval {ratio.low:.4f} to {ratio.high:.4f}"
    )


def report(
    meter: Meter,
    steps: int,
    bare: list[tuple[float, float]],
    ours: list[tuple[float, float]],
    told: Report,
) -> int:
    """Print both answers with their budgets and put them into the report; returns the exit status."""
    once = ("on_init_end", "on_train_begin", "on_train_end")
    each = {key: spent / steps for key, spent in meter.spent_s.items() if key[1] not in once}
    inside_s = sum(each.values())
    once_s = sum(spent for key, spent in meter.spent_s.items() if key[1] in once)
    share = inside_s / STEP_BUDGET_S
    verdicts = [verdict(share, share, SHARE_BUDGET)]
    ratios = np.array(ours) / np.array(bare)
    found: dict[str, Any] = {
        "inside_callbacks_us_per_step": inside_s * 1e6,
        "share_of_20_ms_step": share,
        "once_per_training_ms": once_s * 1e3,
        "bare_step_ms": statistics.median(wall for wall, _ in bare) * 1e3,
        "pairs": len(ratios),
        "steps": steps,
    }
    for column, name in enumerate(("wall", "processor")):
        values = ratios[:, column].tolist()
        low, high = interval(values)
        found[name] = {
            "ratio": statistics.median(values),
            "low": low,
            "high": high,
            "budget": verdict(low, high, RATIO_BUDGET),
        }
        verdicts.append(found[name]["budget"])
    told.row(
        "inside our callbacks, share of a step of 20 ms (budget 1 %)", Figure.exactly(100 * share, "%"),
        budget=BUDGETS["callbacks"], verdict=decided(verdicts[0]), samples=steps,
        note=f"{inside_s * 1e6:.0f} µs a step, every step logged",
    )  # fmt: skip
    for column, name in enumerate(("wall", "processor")):
        mine, theirs = ([1e3 * each[column] for each in side] for side in (ours, bare))
        one = found[name]
        told.row(
            f"step with all callbacks, {name} time (budget: ratio 1.01)", Figure.of(mine, "ms"),
            Peer.of("bare Hugging Face Trainer", version_here("transformers"), theirs, "ms"),
            ratio=Ratio(one["ratio"], one["low"], one["high"]), budget=BUDGETS["callbacks"],
            verdict=decided(one["budget"]), samples=len(ratios),
        )  # fmt: skip
    print(f"Inside our callbacks, every step logged ({steps} steps):")
    for (owner, event), spent in sorted(each.items(), key=lambda item: -item[1]):
        print(f"  {owner + '.' + event:<44} {spent * 1e6:8.1f} µs a step")
    print(f"  {'together':<44} {inside_s * 1e6:8.1f} µs a step = {share:.2%} of 20 ms")
    print(f"  budget {SHARE_BUDGET:.0%}: {verdicts[0]}; once a training: {once_s * 1e3:.1f} ms")
    print(f"With our callbacks ÷ bare Trainer, {len(ratios)} pairs of {steps} steps of {found['bare_step_ms']:.1f} ms:")
    for name in ("wall", "processor"):
        one = found[name]
        print(f"  {name:<10} ratio {one['ratio']:.4f}, 95 % interval {one['low']:.4f} to {one['high']:.4f}")
        print(f"  {'':<10} budget {RATIO_BUDGET}: {one['budget']}")
    return status(*verdicts)


if __name__ == "__main__":
    sys.exit(main())
