"""How long a training stands still when the aggregate of a federation is copied into the adapter that it trains.

    python bench/hotreload.py            # about a minute
    python bench/hotreload.py --quick    # about fifteen seconds; wider interval

An adapter of 10 MB (rank 64 on q, k, v, o of 20 layers, 160 tensors, float32) with AdamW on a model of Llama's. Three
questions, one run; in each round all take turns in who comes first:

1. Values that are in memory, as they are when a version has been fetched beside the training: ours beside PEFT's
   `set_peft_model_state_dict`. Budget: 20 ms.
2. A folder on disk, as a loop of one's own has it: our `hot_reload` beside PEFT's `hotswap_adapter` and beside
   `load_peft_weights` with `set_peft_model_state_dict`. All of them leave the parameters to the optimizer.
3. A real training with `FederatedCallback`, a real server in a process of its own, a version after each upload: the
   time that the training is inside the callback in steps in which a version comes in, and whether every step was made.
   Budget: 20 ms, and no step lost.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from _common import Verdict, free_port, interval, status, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, version_here
from peft import LoraConfig, TaskType, get_peft_model
from peft.utils.hotswap import hotswap_adapter
from peft.utils.save_and_load import load_peft_weights, set_peft_model_state_dict
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

from tunefleet import FederatedCallback
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client.routes.federation_routes import create_federation
from tunefleet.spec.options.federation_options import FederationSpec
from tunefleet.workloads.federated import hot_reload
from tunefleet.workloads.federated.live_adapter import LiveAdapter
from tunefleet.workloads.federated.weight_reload import blend

BUDGET_S = 0.020
SYNC_EVERY_STEPS = 6


def adapted() -> Any:
    """Make the model with its adapter."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=20,
        num_attention_heads=4,
        max_position_embeddings=128,
    )
    lora = LoraConfig(
        r=64,
        lora_alpha=64,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type=TaskType.CAUSAL_LM,
        base_model_name_or_path="bench/llama",
    )
    return get_peft_model(LlamaForCausalLM(config), lora)


def compare(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Time every way of reloading, in turns; returns seconds by way."""
    model = adapted()
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
    ids = torch.randint(0, 512, (1, 32))
    live = LiveAdapter(model)
    model.save_pretrained(folder)
    values = {name: torch.randn(tensor.shape) * 0.01 for name, tensor in live.tensors.items()}
    ways: dict[str, Callable[[], Any]] = {
        "memory: ours": lambda: blend(live, values),
        "memory: set_peft_model_state_dict": lambda: set_peft_model_state_dict(model, values),
        "folder: hot_reload": lambda: hot_reload(model, folder, optimizer),
        "folder: hotswap_adapter": lambda: hotswap_adapter(model, str(folder), "default", torch_device="cpu"),
        "folder: load_peft_weights + set": lambda: set_peft_model_state_dict(
            model, load_peft_weights(str(folder), device="cpu")
        ),
    }
    spent: dict[str, list[float]] = defaultdict(list)
    names = list(ways)
    for turn in range(rounds + 2):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            # A step between any two, as in a training: caches are as they are then.
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            began = time.perf_counter()
            ways[name]()
            if turn >= 2:
                spent[name].append(time.perf_counter() - began)
    return spent


class Stopwatch(TrainerCallback):
    """Times a callback at the end of each step, and notes what it did there."""

    def __init__(self, federated: FederatedCallback) -> None:
        self.federated = federated
        self.inside_s: dict[int, float] = {}
        self.versions: dict[int, int] = {}
        inner = federated.on_step_end

        def timed(args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
            began, before = time.perf_counter(), federated.version
            inner(args, state, control, **kwargs)
            self.inside_s[state.global_step] = time.perf_counter() - began
            if federated.version != before:
                self.versions[state.global_step] = federated.version

        federated.on_step_end = timed  # type: ignore[method-assign]


def train(root: Path, steps: int) -> tuple[Stopwatch, int, int]:
    """Train with a real server; returns what was timed, the steps that were logged, and the updates that were taken."""
    with ExitStack() as stack:
        environment = {"TUNEFLEET_LOG_LEVEL": "WARNING"}
        fleet = LocalFleet(root / "fleet", port=free_port(), workers=0, environment=environment, save_client=False)
        stack.enter_context(fleet)
        from tunefleet.client import Client

        client = stack.enter_context(Client(fleet.url, fleet.key))
        made = client.transport.run(create_federation(FederationSpec(name="bench", min_workers=1)))
        federated = FederatedCallback(fleet.url, made.id, "bench", made.token, SYNC_EVERY_STEPS)
        watch = Stopwatch(federated)
        ids = torch.randint(0, 512, (64, 32), generator=torch.Generator().manual_seed(0))
        trainer = Trainer(
            model=adapted(),
            args=TrainingArguments(
                output_dir=str(root / "out"),
                max_steps=steps,
                per_device_train_batch_size=1,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=[{"input_ids": row, "labels": row} for row in ids],
            callbacks=[federated],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        return watch, sum("loss" in entry for entry in trainer.state.log_history), len(federated.sent)


def report(
    spent: dict[str, list[float]],
    watch: Stopwatch,
    logged: int,
    sent: int,
    steps: int,
    *,
    told: Report,
    file: Path | None,
) -> int:
    """Print and write all answers with their budgets; returns the exit status."""
    verdicts: list[Verdict] = []
    found: dict[str, Any] = {"ways": {}, "ratios": {}}
    for name, seconds in spent.items():
        low, high = np.percentile(seconds, [5, 95])
        found["ways"][name] = {"median_ms": statistics.median(seconds) * 1e3, "p5_ms": low * 1e3, "p95_ms": high * 1e3}
    pairs = [("memory: set_peft_model_state_dict", "memory: ours")]
    pairs += [
        (name, "folder: hot_reload") for name in spent if name.startswith("folder: ") and "hot_reload" not in name
    ]
    for peer, ours in pairs:
        ratios = [a / b for a, b in zip(spent[peer], spent[ours], strict=True)]
        low, high = interval(ratios)
        found["ratios"][f"{peer} ÷ {ours}"] = {"ratio": statistics.median(ratios), "low": low, "high": high}
    budget = interval(spent["memory: ours"])
    verdicts.append(verdict(*budget, BUDGET_S))
    inside = [watch.inside_s[step] for step in watch.versions]
    if not inside:
        raise SystemExit("No version came in while the training ran.")
    low, high = interval(inside)
    verdicts.append(verdict(low, high, BUDGET_S))
    lost = steps - logged
    verdicts.append("kept" if lost == 0 else "BROKEN")
    found["training"] = {
        "reloads": len(inside),
        "uploads": sent,
        "median_ms": statistics.median(inside) * 1e3,
        "low_ms": low * 1e3,
        "high_ms": high * 1e3,
        "worst_ms": max(inside) * 1e3,
        "steps": steps,
        "lost": lost,
    }
    found["budgets"] = {"memory": verdicts[0], "training": verdicts[1], "steps": verdicts[2]}
    for way, taken in spent.items():
        if way not in ("memory: ours", "folder: hot_reload"):
            mine = "memory: ours" if way.startswith("memory") else "folder: hot_reload"
            each, wanted = found["ratios"][f"{way} ÷ {mine}"], mine == "memory: ours"
            limit = " (budget 20 ms)" if wanted else ""
            told.row(
                f"reload of a 10 MB adapter, {mine}{limit}, ratio: the peer's time ÷ ours",
                Figure.of([1e3 * s for s in spent[mine]], "ms"),
                Peer.of(f"PEFT {way.partition(': ')[2]}", version_here("peft"), [1e3 * s for s in taken], "ms"),
                ratio=Ratio(each["ratio"], each["low"], each["high"]), samples=len(spent[mine]),
                budget=BUDGETS["hot-reload"] if wanted else None, verdict=decided(verdicts[0]) if wanted else None,
            )  # fmt: skip
    told.row(
        "the training stands still for a version that came in (budget 20 ms)",
        Figure.of([1e3 * s for s in inside], "ms"), budget=BUDGETS["hot-reload"], verdict=decided(verdicts[1]),
        samples=len(inside), note=f"at most {1e3 * max(inside):.1f} ms",
    )  # fmt: skip
    told.row(
        f"steps lost of {steps}", Figure.exactly(lost, "steps"), budget=BUDGETS["hot-reload"],
        verdict=decided(verdicts[2]), samples=steps,
    )  # fmt: skip
    told.write(file)
    print(f"An adapter of 10 MB in 160 tensors, {len(spent['memory: ours'])} rounds:")
    for name, each in found["ways"].items():
        print(f"  {name:<36} {each['median_ms']:7.2f} ms   ({each['p5_ms']:.2f} to {each['p95_ms']:.2f})")
    for name, each in found["ratios"].items():
        print(f"  {name:<60} {each['ratio']:5.2f}, 95 % {each['low']:.2f} to {each['high']:.2f}")
    print(f"  budget {BUDGET_S * 1e3:.0f} ms: {verdicts[0]}")
    one = found["training"]
    print(f"In a training with FederatedCallback, {sent} uploads, {one['reloads']} versions came in:")
    print(
        f"  the training stands still {one['median_ms']:.2f} ms (95 % {one['low_ms']:.2f} to {one['high_ms']:.2f}, ",
        end="",
    )
    print(f"at most {one['worst_ms']:.2f}); budget {BUDGET_S * 1e3:.0f} ms: {verdicts[1]}")
    print(f"  {lost} of {steps} steps lost: {verdicts[2]}")
    return status(*verdicts)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rounds, steps = (10, 60) if options.quick else (60, 240)
    with tempfile.TemporaryDirectory(prefix="tunefleet-bench-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        os.environ["TUNEFLEET_HOME"] = str(root / "home")
        spent = compare(root / "adapter", rounds)
        watch, logged, sent = train(root, steps)
    told = Report("hotreload", quick=options.quick)
    return report(spent, watch, logged, sent, steps, told=told, file=options.json)


if __name__ == "__main__":
    sys.exit(main())
