"""How fast a LoRA run trains compared with TRL's SFTTrainer and a bare loop, and how much memory it takes.

    python bench/training.py            # the built-in model and SmolLM2, idle and busy: half an hour
    python bench/training.py --quick    # the built-in model, two minutes; wider interval

LoRA r 8 on all linear layers, batch 4, at most 128 tokens, float32, a loss on answers: a quarter of the tokens have a
label. Each of the three trains in a process of its own, one after the other in turns: ours with the trainer and the
environment that a worker gives its jobs, TRL with its own defaults, the loop with the model's own loss. Busy means that
two other processes compute meanwhile.

Tokens per second are those of the batches without padding. Memory is what the process takes at its peak beyond the
loaded model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from _common import status, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, version_here

SIDES: Final = ("ours", "trl", "bare")
WARM: Final = 3
BATCH, LENGTH, LABELLED = 4, 128, 0.25
SPEED_BUDGET, SMALL_BUDGET, BUSY_BUDGET, MEMORY_BUDGET = 1 / 1.2, 1.03, 1.1, 0.75
_SHIPPED: Final = "gsm8k-llama-2m"
_SPIN: Final = "while True: pass"


def rows(count: int) -> list[dict[str, list[int]]]:
    """Return random rows of different lengths whose last quarter is the answer."""
    import numpy as np

    draw = np.random.default_rng(0)
    found = []
    for size in draw.integers(LENGTH // 2, LENGTH + 1, count).tolist():
        ids = draw.integers(100, 2000, size).tolist()
        asked = round(size * (1 - LABELLED))
        found.append({"input_ids": ids, "labels": [-100] * asked + ids[asked:]})
    return found


def side(name: str, model: str, steps: int) -> dict[str, float]:
    """Train in this process; returns the seconds of a step, tokens per second, and bytes beyond the loaded model."""
    import datasets
    import torch
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for parameter in loaded.parameters():
        parameter.sum()  # weights that are mapped from their file are loaded by being read
    tokenizer = AutoTokenizer.from_pretrained(model)
    data = rows(BATCH * (steps + WARM))
    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    train = _loop if name == "bare" else _trainer
    took = train(name, loaded, tokenizer, lora, datasets.Dataset.from_list(data), steps + WARM)
    tokens = sum(len(row["input_ids"]) for row in data[BATCH * WARM :])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "step_s": statistics.median(took[WARM:]),
        "tokens_per_s": tokens / sum(took[WARM:]),
        "bytes": (peak - before) * 1024.0,
    }


def _trainer(name: str, model: Any, tokenizer: Any, lora: Any, data: Any, steps: int) -> list[float]:
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer

    from tunefleet.workloads.training.trainer import Trainer

    took: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            took.append(time.perf_counter() - self.began)

    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder, max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=2e-4, logging_steps=10,
            save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, max_length=None,
            gradient_checkpointing=False, dataloader_pin_memory=False, dataset_kwargs={"skip_prepare_dataset": True},
        )  # fmt: skip
        made = (Trainer if name == "ours" else SFTTrainer)(
            model=model, args=arguments, train_dataset=data, processing_class=tokenizer, peft_config=lora,
            callbacks=[Clock()],
        )  # fmt: skip
        made.train()
    return took


def _loop(_: str, model: Any, tokenizer: Any, lora: Any, data: Any, steps: int) -> list[float]:
    import torch
    from peft import get_peft_model

    model = get_peft_model(model, lora).train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4, fused=True)
    took = []
    for step in range(steps):
        began = time.perf_counter()
        batch = [data[at] for at in range(step * BATCH, (step + 1) * BATCH)]
        longest = max(len(row["input_ids"]) for row in batch)
        pads = [longest - len(row["input_ids"]) for row in batch]
        pairs = list(zip(batch, pads, strict=True))
        ids = torch.tensor([row["input_ids"] + [tokenizer.pad_token_id] * pad for row, pad in pairs])
        labels = torch.tensor([row["labels"] + [-100] * pad for row, pad in pairs])
        mask = torch.tensor([[1] * (longest - pad) + [0] * pad for _, pad in pairs])
        loss = model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        took.append(time.perf_counter() - began)
    return took


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Let other processes compute."""
    others = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def in_turns(model: str, steps: int, turns: int) -> dict[str, list[dict[str, float]]]:
    """Measure all sides, one after the other, for a number of turns."""
    from tunefleet.runtime.environment import BRIEF_SPIN

    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    cores = len(os.sched_getaffinity(0))
    for turn in range(turns):
        for name in SIDES if turn % 2 == 0 else reversed(SIDES):
            # All cores, as a training has them: what starts the benchmarks lets each have one.
            environment = {**os.environ, "OMP_NUM_THREADS": str(cores), **(BRIEF_SPIN if name == "ours" else {})}
            command = [sys.executable, __file__, "side", name, model, str(steps)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout.splitlines()[-1]))
            print(f"  {name:5} {found[name][-1]['step_s']:.3f} s a step", flush=True)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: a model, how many other processes compute meanwhile, and for how long."""

    model: str
    busy: int
    steps: int
    turns: int

    @property
    def real(self) -> bool:
        """Whether it is to be ahead of TRL; of 2M parameters, most of the time and memory are the libraries' own."""
        return Path(self.model).name != _SHIPPED

    @property
    def name(self) -> str:
        """As a row of the report names it."""
        return Path(self.model).name + (f", {self.busy} other busy processes" if self.busy else "")


def cases(options: argparse.Namespace) -> list[Case]:
    """Return what the options ask for: by default the built-in model and SmolLM2, idle and busy."""
    from tunefleet.cli.local_cluster import smollm2
    from tunefleet.settings import ClientSettings, load
    from tunefleet.workloads import assets

    shipped = str(assets.locate(f"builtin:{_SHIPPED}", "model"))
    if options.quick or options.model:
        steps, turns = (8, 2) if options.quick else (options.steps, options.turns)
        return [Case(options.model or shipped, options.busy, steps, turns)]
    real = str(smollm2.prepare(load(ClientSettings).models_folder))
    # With busy processes, one step of SmolLM2 takes TRL half a minute.
    return [Case(shipped, 0, 40, 5), Case(shipped, 2, 20, 3), Case(real, 0, 8, 5), Case(real, 2, 2, 2)]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder of one model, instead of the built-in one and SmolLM2")
    parser.add_argument("--busy", type=int, default=0, help="of one model: other processes that compute meanwhile")
    parser.add_argument("--turns", type=int, default=5, help="of one model")
    parser.add_argument("--steps", type=int, default=20, help="of one model, in each turn")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    told = Report("training", quick=options.quick)
    said = [verdict for case in cases(options) for verdict in compared(case, told)]
    told.write(options.json)
    return status(*said)


def compared(case: Case, told: Report) -> list[Any]:
    """Measure a case, and put it into the report; returns the verdicts on its budgets."""
    print(case.name, flush=True)
    with busy(case.busy):
        found = in_turns(case.model, case.steps, case.turns)
    said = []
    for what, key, unit, scale, budget in (
        ("step", "step_s", "ms", 1e3, BUSY_BUDGET if case.busy else SPEED_BUDGET if case.real else SMALL_BUDGET),
        ("memory beyond the loaded model", "bytes", "MB", 1e-6, MEMORY_BUDGET if case.real else None),
    ):
        ours = [scale * each[key] for each in found["ours"]]
        for peer, version in (("trl", version_here("trl")), ("bare", version_here("torch"))):
            theirs = [scale * each[key] for each in found[peer]]
            ratio = Ratio.of([a / b for a, b in zip(ours, theirs, strict=True)])
            decision = verdict(ratio.low, ratio.high, budget) if peer == "trl" and budget is not None else None
            called = "TRL SFTTrainer" if peer == "trl" else "a bare loop"
            told.row(
                f"LoRA {what}, {case.name}" + (f" (budget: ratio {budget:.2f})" if decision else ""),
                Figure.of(ours, unit), Peer.of(called, version, theirs, unit), ratio=ratio,
                budget=BUDGETS["training"] if decision else None, verdict=decided(decision) if decision else None,
                samples=case.turns,
            )  # fmt: skip
            said += [decision] if decision else []
            print(f"{what}: ours {statistics.median(ours):.1f} {unit}, {called} {statistics.median(theirs):.1f} {unit}")
            print(f"  ratio {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", flush=True)
    return said


if __name__ == "__main__":
    if sys.argv[1:2] == ["side"]:
        print(json.dumps(side(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        sys.exit(main())
