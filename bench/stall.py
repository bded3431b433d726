"""How long a checkpoint holds up the training: the Trainer's own, torch's DCP in the background, and ours.

    python bench/stall.py --json FILE            # about four minutes
    python bench/stall.py --json FILE --quick    # about half a minute, 100 MB alone

A model of one table is trained on the CPU by the Trainer with AdamW, so that its state (weights and two moments) is of
the size named. The stall of a checkpoint is how much longer than the median step the step is after which it is saved;
the longest of the steps after it tells what writing beside the training costs. Only ours hashes what it has written and
syncs it to the disk (in the background); the others leave that to the system.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import transformers
from _limit import end_after
from _report import Figure, Peer, Ratio, Report, version_here
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from tunefleet import trainer_control
from tunefleet.workloads.training.async_checkpoint import BackgroundWriter
from tunefleet.workloads.training.exact_trainer import ExactTrainer

WIDTH, WARM_UP = 512, 3
LIMIT_S = 900
ROWS = [{"input_ids": torch.arange(64) + row, "labels": torch.arange(64)} for row in range(16)]


class Table(nn.Module):
    """A table of a size, of which a little is looked up in each step."""

    def __init__(self, state_mb: int) -> None:
        super().__init__()
        self.table = nn.Embedding(state_mb * 1_000_000 // 12 // WIDTH, WIDTH)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: ARG002
        return {"loss": self.table(input_ids).pow(2).mean()}


class Clock(TrainerCallback):
    """Notes when each step begins: a save falls into the step that it follows."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.begun.append(time.perf_counter())


class SaveWithDcp(TrainerCallback):
    """Begins an asynchronous save of torch's after every so many steps; waits for the one before it."""

    def __init__(self, folder: Path, every: int) -> None:
        self._folder, self._every, self._saving = folder, every, None

    def on_step_end(
        self, _args: Any, state: Any, _control: Any, model: Any = None, optimizer: Any = None, **_kwargs: Any
    ) -> None:
        if state.global_step % self._every == 0:
            self.wait()
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            self._saving = dcp.async_save(states, checkpoint_id=str(self._folder / f"dcp-{state.global_step}"))

    def wait(self) -> None:
        """Wait for the save that is under way."""
        if self._saving is not None:
            self._saving.result()


def trained(who: str, root: Path, state_mb: int, saves: int, every: int) -> tuple[list[float], float]:
    """Train; returns the stall of each save and the longest other step's excess, ms."""
    torch.manual_seed(0)
    folder, clock = root / who, Clock()
    folder.mkdir()
    # The last step is followed by nothing that is timed.
    steps = saves * every + WARM_UP
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"), max_steps=steps, per_device_train_batch_size=1, report_to="none",
        save_strategy="no" if who == "dcp" else "steps", save_steps=every, save_total_limit=2, disable_tqdm=True,
        logging_strategy="no", use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    options: dict[str, Any] = {"model": Table(state_mb), "args": arguments, "train_dataset": ROWS}
    close: Callable[[], None] = lambda: None  # noqa: E731
    if who == "ours":
        job = {"job_id": "j", "launch": "launch", "attempt": 1, "endpoint_dir": str(folder / "endpoints")}
        (folder / "job.json").write_text(json.dumps(job))
        session, writer = trainer_control.open_session(folder), BackgroundWriter()
        session.before_manifest.append(writer.settle)
        trainer: Trainer = ExactTrainer(**options, callbacks=[*trainer_control.callbacks_for_job(folder), clock])
        trainer.write_in_background(writer)

        def close() -> None:
            session.settle()
            session.close()
    elif who == "dcp":
        save = SaveWithDcp(folder, every)
        trainer, close = Trainer(**options, callbacks=[clock, save]), save.wait
    else:
        trainer = Trainer(**options, callbacks=[clock])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    close()
    shutil.rmtree(folder)
    took = [(after - before) * 1e3 for before, after in zip(clock.begun[:-1], clock.begun[1:], strict=True)]
    at_save = [took[number * every - 1] for number in range(1, saves + 1)]
    others = [each for number, each in enumerate(took, 1) if number % every and number > WARM_UP]
    usual = statistics.median(others)
    return [each - usual for each in at_save], max(others) - usual


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="Where the report goes.")
    parser.add_argument("--quick", action="store_true", help="One round, 100 MB alone.")
    options = parser.parse_args()
    end_after(LIMIT_S)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(1)
    report = Report("stall", quick=options.quick)
    peers = {"stock": ("Trainer, saved in the step", "transformers"), "dcp": ("torch DCP async_save", "torch")}
    with tempfile.TemporaryDirectory(prefix="stall-", ignore_cleanup_errors=True) as name:
        os.environ["TUNEFLEET_HOME"] = f"{name}/home"
        dist.init_process_group("gloo", store=dist.FileStore(f"{name}/store", 1), rank=0, world_size=1)
        for state_mb, rounds, saves, every in ((100, 1 if options.quick else 5, 3, 10), (1000, 3, 2, 8)):
            if options.quick and state_mb > 100:
                break
            stalls: dict[str, list[float]] = {"ours": [], "dcp": [], "stock": []}
            longest: dict[str, list[float]] = {who: [] for who in stalls}
            for turn in range(rounds):
                root = Path(name) / f"{state_mb}-{turn}"
                root.mkdir()
                for who in stalls if turn % 2 else reversed(stalls):
                    found, worst = trained(who, root, state_mb, saves, every)
                    stalls[who] += found
                    longest[who].append(worst)
            for what, figures in (("stall of a checkpoint", stalls), ("longest step between two of them", longest)):
                tell(report, f"{what}, {state_mb} MB of state", figures, peers)
        dist.destroy_process_group()
    report.write(options.json)
    return 0


def tell(report: Report, what: str, figures: dict[str, list[float]], peers: dict[str, tuple[str, str]]) -> None:
    """Print and report a comparison."""
    mine = figures["ours"]
    for who, (label, package) in peers.items():
        theirs = figures[who]
        said = f"ours {statistics.median(mine):8.1f} ms, at most {max(mine):8.1f}"
        print(f"{what:56} {said}   {label:27} {statistics.median(theirs):8.1f}, at most {max(theirs):8.1f}", flush=True)
        ratio = Ratio.of([a / b for a, b in zip(mine, theirs, strict=True)]) if min(theirs) > 0 else None
        report.row(
            what, Figure.of(mine, "ms"), Peer.of(label, version_here(package), theirs, "ms"), ratio=ratio,
            samples=len(mine), note=f"at most: ours {max(mine):.1f} ms, {label} {max(theirs):.1f} ms",
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
