"""What our callbacks cost a training, beside the bare Hugging Face Trainer.

    python bench/overhead.py            # about ten minutes
    python bench/overhead.py --quick    # about two minutes; wider interval

Two questions, one run:

1. How long is the training thread inside our callbacks (journal, checkpoints, control) in each step? Every method of
   theirs is timed by the thread's own processor time, so that other work on the machine does not count; loss and
   learning rate are logged at every step, which is the worst case. Budget: 1 % of a step of 20 ms. Beside it: how long
   our other threads, which write and listen meanwhile, have a processor for each step.
2. How much longer does a step take with them? One training has them at one step and not at the next, in turns, so that
   a machine which is slower for a second is so for both; some trainings do so one after the other. The ratio is of the
   means of ten steps, once by the clock on the wall, to which all that our other threads compute is added, and once by
   the processor time of all threads of the process; the interval is a bootstrap over such tens. Budget: 1.01.

A third step of each turn is with what the Trainer brings itself for a training that is to survive a signal: its
checkpoint on SIGTERM (`enable_jit_checkpoint`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import transformers
from _alternation import TURNS, Took, alternate, in_processes
from _common import Verdict, status, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, version_here
from _trainings import ONCE, RATIO_BUDGET, SHARE_BUDGET, STEP_BUDGET_S, WARM_UP_STEPS, Meter, others_s, training
from transformers import TrainerCallback
from transformers.trainer_jit_checkpoint import JITCheckpointCallback

from tunefleet import trainer_control

# So many times ten steps of each kind, in each process.
TENS = 80


def watched(folder: Path, train: Callable[[Sequence[TrainerCallback]], None]) -> None:
    """Run one training in a job folder of its own, with our callbacks."""
    folder.mkdir(exist_ok=True)
    job = {"job_id": folder.name, "launch": "launch", "attempt": 1, "endpoint_dir": str(folder.parent / "endpoints")}
    (folder / "job.json").write_text(json.dumps(job))
    train(trainer_control.callbacks_for_job(folder))
    trainer_control.open_session(folder).close()


def metered(folder: Path, steps: int) -> Meter:
    """Train with all callbacks timed."""
    meters = []

    def train(callbacks: Sequence[TrainerCallback]) -> None:
        meters.append(Meter(callbacks))
        training(folder, steps, callbacks)
        meters[0].others_s = others_s()

    watched(folder, train)
    return meters[0]


def side(folder: Path) -> None:
    """Train with the callbacks of each kind in turns."""

    def train(ours: Sequence[TrainerCallback]) -> None:
        alternate(folder, {"bare": (), "ours": ours, "jit": [JITCheckpointCallback]}, TENS, jit=True)

    watched(folder, train)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    alone, times = (40, 1) if options.quick else (400, 4)
    with tempfile.TemporaryDirectory(prefix="tunefleet-bench-") as name:
        root = Path(name)
        training(root / "warm-up", 2 * WARM_UP_STEPS, [])
        meter = metered(root / "metered", alone)
        (found,) = in_processes([sys.executable, __file__, "side"], root / "turns", times)
    told = Report("overhead", quick=options.quick)
    verdicts = [inside(meter, alone, told), *compared(found, told)]
    told.write(options.json)
    return status(*verdicts)


def inside(meter: Meter, steps: int, told: Report) -> Verdict:
    """Print and report how long the training thread is in our callbacks."""
    each = {key: spent / steps for key, spent in meter.spent_s.items() if key[1] not in ONCE}
    inside_s = sum(each.values())
    once_s = sum(spent for key, spent in meter.spent_s.items() if key[1] in ONCE)
    share = inside_s / STEP_BUDGET_S
    said = verdict(share, share, SHARE_BUDGET)
    told.row(
        "inside our callbacks, share of a step of 20 ms (budget 1 %)", Figure.exactly(100 * share, "%"),
        budget=BUDGETS["callbacks"], verdict=decided(said), samples=steps,
        note=f"{inside_s * 1e6:.0f} µs a step, every step logged",
    )  # fmt: skip
    others_us = 1e6 * meter.others_s / steps
    told.row("our other threads, processor time for each step", Figure.exactly(others_us, "µs"), samples=steps)
    print(f"Inside our callbacks, every step logged ({steps} steps):")
    for (owner, event), spent in sorted(each.items(), key=lambda item: -item[1]):
        print(f"  {owner + '.' + event:<44} {spent * 1e6:8.1f} µs a step")
    print(f"  {'together':<44} {inside_s * 1e6:8.1f} µs a step = {share:.2%} of 20 ms")
    print(f"  budget {SHARE_BUDGET:.0%}: {said}; once a training: {once_s * 1e3:.1f} ms")
    print(f"  {'our other threads':<44} {others_us:8.1f} µs a step")
    return said


def compared(found: dict[str, list[Took]], told: Report) -> list[Verdict]:
    """Print and report our steps beside those of the others."""
    version, verdicts = version_here("transformers"), []
    for name, called in (("bare", "bare Hugging Face Trainer"), ("jit", "Trainer with enable_jit_checkpoint")):
        for column, clock in enumerate(("wall", "processor")):
            mine, theirs = ([1e3 * each[column] for each in found[side]] for side in ("ours", name))
            ratio = Ratio.of([a / b for a, b in zip(mine, theirs, strict=True)])
            said = verdict(ratio.low, ratio.high, RATIO_BUDGET) if name == "bare" else None
            told.row(
                f"step with all callbacks, {clock} time" + (" (budget: ratio 1.01)" if said else ""),
                Figure.of(mine, "ms"), Peer.of(called, version, theirs, "ms"), ratio=ratio,
                budget=BUDGETS["callbacks"] if said else None, verdict=decided(said) if said else None,
                samples=len(mine), note=TURNS,
            )  # fmt: skip
            print(
                f"With our callbacks ÷ {called}, {clock}: {ratio.median:.4f}, 95 % interval {ratio.low:.4f} to "
                f"{ratio.high:.4f}" + (f"; budget {RATIO_BUDGET}: {said}" if said else "")
            )
            if said:
                verdicts.append(said)
    return verdicts


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    match sys.argv[1:]:
        case ["side", folder_]:
            side(Path(folder_))
        case _:
            sys.exit(main())
