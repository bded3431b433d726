"""What it costs to be steerable, and how soon a command acts; beside a bare Hugging Face Trainer in the same run.

    python bench/control.py            # about half an hour
    python bench/control.py --quick    # about two; wider intervals

1. Callbacks: processor time of the training thread inside `TrainerControlCallback`, and the ratio of steps with and
   without it, taken in turns, with one process and with two ranks (gloo). Budgets: 1 % of a step of 20 ms; 1.01.
2. The check at the end of a step that nobody asked anything of: one process; two ranks, for slow and for fast steps.
   Budgets: 0.5 µs; 50 µs and 2 µs.
3. Memory that the control server adds to a process that has a Trainer. Budget: 1 MB.
4. Command → applied: from the client's request to the moment when the training acts, over HTTP, and how many steps
   later two ranks act, both at one step. Budgets: 10 ms beyond the longest step that is under way meanwhile; one step
   more than they decide ahead.
5. Pause → process gone, resume → first step, warm and cold, beside what importing the training libraries takes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from _alternation import TURNS, alternate, in_processes
from _common import interval, percentiles, verdict
from _report import BUDGETS, Figure, Peer, Ratio, Report, decided, kept_if, version_here
from _trainings import ONCE, RATIO_BUDGET, SHARE_BUDGET, STEP_BUDGET_S, WARM_UP_STEPS, Meter, training

from tunefleet import TrainerControlCallback
from tunefleet.trainer_control.control.command_queue import CommandQueue
from tunefleet.trainer_control.distributed import step_agreement
from tunefleet.trainer_control.distributed.tcp_store import horizon_of

# Length of a step in ms: how many of them, and what the check may cost (median). From 32 ms on fewer are decided ahead.
RANK_STEPS = {"1": 2000, "20": 200, "300": 100}
ASKED_EVERY = 10
# So many times ten steps with control, and as many without it, in each process.
TENS = 110
RANK_BUDGETS_US = {"1": 2, "20": 50, "300": 50}
CHECK_BUDGET_US, COMMAND_BUDGET_MS = 0.5, 10.0
LIBRARIES = "import torch, peft; from trl import SFTTrainer"
SPEC = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
    "data": {
        "path": "builtin:gsm8k",
        "max_samples": 2000,
        "prompt_column": "question",
        "response_column": "answer",
    },
    "training": {"max_steps": 5000, "batch_size": 2, "logging_steps": 1, "save_strategy": "no"},
    "checkpoint": {"upload": False},
}


def inside(root: Path, steps: int) -> float:
    """Return seconds a step that the training thread is in the callback; this process may be one of several ranks."""
    os.environ["TUNEFLEET_JOBS_DIR"] = str(root / "jobs")
    training(root / "warm-up", 2 * WARM_UP_STEPS, [])
    callback = TrainerControlCallback(job_id="bench-metered")
    meter = Meter([callback])
    training(root / "metered", steps, [callback])
    return sum(spent for (_, event), spent in meter.spent_s.items() if event not in ONCE) / steps


def side(folder: Path) -> None:
    """Train with and without control in turns; as one of several ranks where the environment says so."""
    os.environ["TUNEFLEET_JOBS_DIR"] = str(folder / "jobs")
    alternate(folder, {"bare": [], "ours": [TrainerControlCallback(job_id="bench-alternating")]}, TENS)


def in_turns(root: Path, size: int, times: int) -> list[dict[str, Any]]:
    """Train with and without control in turns; return what was found, of each rank."""
    found = []
    for took in in_processes([sys.executable, __file__, "--side"], root / f"turns-of-{size}", times, size):
        theirs, mine = ([1e3 * each.wall_s for each in took[name]] for name in ("bare", "ours"))
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        found.append({"bare_ms": theirs, "ours_ms": mine, "ratios": ratios, "interval": list(interval(ratios))})
    return found


def check_alone() -> dict[str, float]:
    """Return what one process pays at the end of a step, in µs; the call of an empty function is taken off."""
    decider = step_agreement.Solo(CommandQueue())
    count, repeats = 200_000, 7
    empty = min(timeit.repeat("f(1)", globals={"f": lambda _: ()}, number=count, repeat=repeats)) / count
    check = min(timeit.repeat("f(1)", globals={"f": decider.due}, number=count, repeat=repeats)) / count
    return {"us": check * 1e6, "beyond_an_empty_call_us": (check - empty) * 1e6}


def check_of_ranks(steps: int, step_s: float) -> dict[str, Any]:
    """Time the check of this rank at the end of steps that compute, beside a call of an empty function there.

    All ranks do this together. Both come out of the caches as cold as the computation leaves them.
    """
    decider = step_agreement.coordinator_for(CommandQueue())
    numbers = torch.randn(128, 128)
    spent: dict[str, list[float]] = {"check": [], "empty": []}

    def timed(name: str, call: Callable[[int], Any], step: int, work_s: float) -> None:
        until = time.perf_counter() + work_s
        while time.perf_counter() < until:
            torch.mm(numbers, numbers)
        begun = time.perf_counter()
        call(step)
        spent[name].append(time.perf_counter() - begun)

    torch.distributed.barrier()
    for step in range(1, steps + 1):
        timed("empty", lambda _: None, step, step_s / 2)
        timed("check", decider.due, step, step_s / 2)
    torch.distributed.barrier()
    # The first quarter is for the horizon to find out how long the steps are.
    return {name: percentiles(seconds[steps // 4 :], scale=1e6) for name, seconds in spent.items()}


def delays_of_ranks(steps: int, step_s: float) -> dict[str, Any]:
    """Ask something of rank 0 every few steps, and note at which step this rank acts on it; all ranks do it together.

    Returns:
        `acted`: step at which it was asked → step at which it was acted on; `horizon`: of steps of this length.
    """
    board = CommandQueue()
    decider = step_agreement.coordinator_for(board)
    acted: dict[str, int] = {}
    torch.distributed.barrier()
    for step in range(1, steps + 1):
        time.sleep(step_s)
        # The first quarter is for the horizon to find out how long the steps are, the end for the last one asked.
        if torch.distributed.get_rank() == 0 and steps // 4 < step <= steps - ASKED_EVERY and step % ASKED_EVERY == 0:
            board.submit("save_checkpoint", command_id=str(step))
        acted |= {item.command_id: step for item in decider.due(step)}
    torch.distributed.barrier()
    return {"acted": acted, "horizon": horizon_of(step_s)}


def rank_main(out: Path, steps: int) -> None:
    """Measure as one of two ranks, and leave what was found in a file."""
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {
        "rank": rank,
        "check": {step_ms: check_of_ranks(steps, int(step_ms) / 1e3) for step_ms, steps in RANK_STEPS.items()},
        "delays": {step_ms: delays_of_ranks(steps, int(step_ms) / 1e3) for step_ms, steps in RANK_STEPS.items()},
        "inside_s": inside(out / f"rank-{rank}", steps),
    }
    (out / f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def with_two_ranks(root: Path, steps: int) -> list[dict[str, Any]]:
    """Run this file as two ranks."""
    out = root / "ranks"
    out.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
    command += ["--as-rank", str(out), "--steps", str(steps)]
    subprocess.run(command, check=True, timeout=900, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(2)]


MEMORY = """
import os, sys, urllib.request
from pathlib import Path
from transformers import Trainer, TrainingArguments
from tunefleet.trainer_control.standalone import StandaloneJob, StandaloneOptions
from tunefleet.trainer_control.process_identity import resident_bytes
import gc; gc.collect(); before = resident_bytes()
job = StandaloneJob.open(StandaloneOptions("memory", None, "localhost", True, True, "auto", False))
import json
port = json.loads(Path(os.environ["TUNEFLEET_JOBS_DIR"], "memory", "endpoint.json").read_text())["port"]
for _ in range(50): urllib.request.urlopen(f"http://localhost:{port}/jobs/memory/status").read()
print(resident_bytes() - before)
"""


def memory_bytes(root: Path) -> list[int]:
    """Return by how much the server makes a process with a Trainer grow, in some processes."""
    environment = {**os.environ, "TUNEFLEET_JOBS_DIR": str(root / "memory-jobs")}
    run = [sys.executable, "-W", "ignore", "-c", MEMORY]
    return [int(subprocess.check_output(run, env=environment, text=True).split()[-1]) for _ in range(3)]


def command_to_applied(root: Path, count: int) -> dict[str, Any]:
    """Send commands from another process at random moments to a training that logs each step."""
    os.environ["TUNEFLEET_JOBS_DIR"] = str(root / "latency-jobs")
    applied: dict[str, float] = {}
    plain = CommandQueue.applied

    def noted(board: CommandQueue, command_id: str, *args: Any, **kwargs: Any) -> None:
        applied[command_id] = time.monotonic()
        plain(board, command_id, *args, **kwargs)

    CommandQueue.applied = noted  # type: ignore[assignment]
    sent = root / "sent.json"
    client = subprocess.Popen([sys.executable, __file__, "--as-client", str(sent), "--count", str(count)])
    try:
        clock = training(root / "latency", 1_000_000, [TrainerControlCallback(job_id="latency")])
    finally:
        CommandQueue.applied = plain  # type: ignore[method-assign]
        client.wait(30)
    asked: dict[str, float] = json.loads(sent.read_text())
    waited = [applied[command_id] - at for command_id, at in asked.items()]
    spans = [(at, applied[command_id]) for command_id, at in asked.items()]
    over = [max(until - since - clock.longest_s(since, until), 0.0) for since, until in spans]
    return {
        "ms": percentiles(waited, scale=1e3),
        "step_ms": clock.medians_s[0] * 1e3,
        "beyond_a_step_ms": percentiles(over, scale=1e3),
    }


def client_main(sent: Path, count: int) -> None:
    """Ask a training for something harmless at random moments, then for its end."""
    from tunefleet.runtime.control import ControlClient, find_endpoint

    jobs = Path(os.environ["TUNEFLEET_JOBS_DIR"])
    deadline = time.monotonic() + 120
    while (endpoint := find_endpoint(jobs, "latency")) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert endpoint is not None
    client = ControlClient(endpoint)
    time.sleep(3)
    asked: dict[str, float] = {}
    dice = random.Random(0)
    for number in range(count):
        time.sleep(dice.uniform(0.01, 0.05))
        asked[f"bench-{number}"] = time.monotonic()
        client.send("set", {"logging_steps": 1}, f"bench-{number}")
    time.sleep(0.5)
    sent.write_text(json.dumps(asked))
    client.send("graceful_stop")


@contextmanager
def supervisor(root: Path, *, warm: bool) -> Iterator[Any]:
    """Give a supervisor of job processes."""
    from tunefleet.runtime import Supervisor
    from tunefleet.settings import inherited_environment

    found = Supervisor(
        root / "results",
        endpoints_dir=root / "jobs",
        warm=warm,
        base_env={**inherited_environment(), "HF_HUB_OFFLINE": "1"},
    )
    try:
        yield found
    finally:
        found.close()


def pause_and_resume(root: Path, *, warm: bool, rounds: int) -> dict[str, Any]:
    """Pause a LoRA training and resume it, some times over."""
    from tunefleet.runtime import new_launch_id
    from tunefleet.schemas.job_folder import Job
    from tunefleet.spec import dump_task_spec, load_task_spec

    gone: list[float] = []
    first: list[float] = []
    spec = dump_task_spec(load_task_spec(SPEC))
    with supervisor(root, warm=warm) as jobs:
        if warm:
            time.sleep(12)  # until the fork server has its imports
        for number in range(rounds + 1):
            launch = new_launch_id()
            asked = time.monotonic()
            handle = jobs.launch(
                Job(
                    job_id="bench", task_id="bench", attempt=1, launch=launch, kind="lora_sft", name="bench",
                    program="tunefleet.workloads.training:main", spec=spec,
                )
            )  # fmt: skip
            journal = handle.folder.journal_dir / f"{launch}.jsonl"
            while not (journal.exists() and '"type":"metric"' in journal.read_text().replace(" ", "")):
                end = handle.poll()
                assert end is None, end
                time.sleep(0.002)
            if number:
                first.append(time.monotonic() - asked)
            time.sleep(0.5)
            asked = time.monotonic()
            handle.command("pause")
            while handle.poll() is None:
                time.sleep(0.002)
            gone.append(time.monotonic() - asked)
            end = handle.poll()
            assert end is not None
            assert end.outcome == "paused", end
            handle.acknowledge()
    return {
        "pause_to_gone_s": {"median": statistics.median(gone), "worst": max(gone)},
        "resume_to_first_step_s": {"median": statistics.median(first), "worst": max(first)},
        "gone_s": gone,
        "first_s": first,
        "rounds": rounds,
    }


def imports_s(rounds: int) -> float:
    """Return how long an interpreter takes that only imports the training libraries: the floor of a cold start."""
    taken = []
    for _ in range(rounds):
        begun = time.monotonic()
        subprocess.run([sys.executable, "-W", "ignore", "-c", LIBRARIES], check=True, capture_output=True)
        taken.append(time.monotonic() - begun)
    return statistics.median(taken)


def measure(options: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Run everything."""
    alone, times = (40, 1) if options.quick else (300, 4)
    rounds = 2 if options.quick else 5
    parts: dict[str, Callable[[], Any]] = {
        "inside_one_process_s": lambda: inside(root / "one", alone),
        "one_process": lambda: in_turns(root, 1, times),
        "two_ranks": lambda: with_two_ranks(root, alone),
        "of_two_ranks": lambda: in_turns(root, 2, times),
        "check_one_process": check_alone,
        "server_memory_mb": lambda: [size / 1e6 for size in memory_bytes(root)],
        "command_to_applied": lambda: command_to_applied(root, 40 if options.quick else 200),
        "import_floor_s": lambda: imports_s(rounds),
        "cold": lambda: pause_and_resume(root / "cold", warm=False, rounds=rounds),
        "warm": lambda: pause_and_resume(root / "warm", warm=True, rounds=rounds),
    }
    found = {}
    for name, part in parts.items():
        found[name] = part()
        print(f"  measured: {name.replace('_', ' ')}", flush=True)
    return found


def rows_of(found: dict[str, Any]) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield who it is, seconds a step inside the callback, and what was found in turns with a bare Trainer."""
    yield "one process", found["inside_one_process_s"], found["one_process"][0]
    for each, row in zip(found["two_ranks"], found["of_two_ranks"], strict=True):
        yield f"rank {each['rank']} of two", each["inside_s"], row


def report(found: dict[str, Any]) -> None:
    """Print what was found, with the budgets."""
    two = found["two_ranks"]
    for what, inside_s, row in rows_of(found):
        low, high = row["interval"]
        print(
            f"{what:<14} inside our callback {inside_s * 1e6:7.1f} µs a step = {inside_s / STEP_BUDGET_S:.2%} of 20 ms "
            f"(budget 1 %); ÷ bare Trainer {statistics.median(row['ratios']):.4f} ({low:.4f} to {high:.4f}, "
            f"{len(row['ratios'])} tens of steps of {statistics.median(row['bare_ms']):.1f} ms; budget 1.01)"
        )
    check = found["check_one_process"]
    print(f"check          {check['us']:.3f} µs, {check['beyond_an_empty_call_us']:.3f} beyond a call (budget 0.5)")
    for each in two:
        for step_ms, row in each["check"].items():
            check, empty, budget = row["check"], row["empty"], RANK_BUDGETS_US[step_ms]
            print(
                f"check, rank {each['rank']}  steps of {step_ms} ms: {check['p50']:.1f} µs (p99 {check['p99']:.0f}; "
                f"an empty call there {empty['p50']:.1f}; budget {budget})"
            )
    print(f"server memory  {', '.join(f'{size:.2f}' for size in found['server_memory_mb'])} MB (budget 1)")
    command = found["command_to_applied"]
    print(
        f"command        applied after {command['ms']['p50']:.1f} ms (p99 {command['ms']['p99']:.1f}), steps of "
        f"{command['step_ms']:.1f} ms: {command['beyond_a_step_ms']['p99']:.1f} ms beyond a step (p99; budget 10)"
    )
    print(f"imports        {found['import_floor_s']:.2f} s: the floor of a cold start")
    for name in ("cold", "warm"):
        row = found[name]
        gone, first = row["pause_to_gone_s"], row["resume_to_first_step_s"]
        print(
            f"{name:<14} pause → gone {gone['median']:.2f} s (worst {gone['worst']:.2f}); resume → first step "
            f"{first['median']:.2f} s (worst {first['worst']:.2f}), {row['rounds']} rounds"
        )


def written(found: dict[str, Any], told: Report) -> Report:
    """Put what was found into a report."""
    two, trainer = found["two_ranks"], version_here("transformers")
    for what, inside_s, row in rows_of(found):
        low, high = row["interval"]
        told.row(
            f"inside the control callback, {what}, share of a step of 20 ms (budget 1 %)",
            Figure.exactly(100 * inside_s / STEP_BUDGET_S, "%"), budget=BUDGETS["callbacks"],
            verdict=kept_if(inside_s / STEP_BUDGET_S <= SHARE_BUDGET),
        )  # fmt: skip
        told.row(
            f"step with the control callback, {what} (budget: ratio 1.01)", Figure.of(row["ours_ms"], "ms"),
            Peer.of("bare Hugging Face Trainer", trainer, row["bare_ms"], "ms"), ratio=Ratio.of(row["ratios"]),
            budget=BUDGETS["callbacks"], verdict=decided(verdict(low, high, RATIO_BUDGET)), samples=len(row["ratios"]),
            note=TURNS,
        )  # fmt: skip
    check = found["check_one_process"]["us"]
    told.row(
        "check of one process (budget 0.5 µs)", Figure.exactly(check, "µs"), budget=BUDGETS["check"],
        verdict=kept_if(check <= CHECK_BUDGET_US), samples=7,
    )  # fmt: skip
    for each in two:
        for step_ms, row in each["check"].items():
            budget, empty_us = RANK_BUDGETS_US[step_ms], row["empty"]["p50"]
            us = max(row["check"]["p50"] - empty_us, 0.0)
            told.row(
                f"check of rank {each['rank']} of two, steps of {step_ms} ms (budget {budget} µs)",
                Figure(us, us, row["check"]["p99"], "µs"), budget=BUDGETS["check"], verdict=kept_if(us <= budget),
                samples=row["check"]["count"], note=f"beyond an empty call there, {empty_us:.1f} µs; up to p99",
            )  # fmt: skip
    grown = found["server_memory_mb"]
    told.row(
        "memory of the control server in a trainer (budget 1 MB)", Figure.of(grown, "MB"),
        budget=BUDGETS["control-memory"], verdict=kept_if(statistics.median(grown) <= 1.0), samples=len(grown),
    )  # fmt: skip
    command = found["command_to_applied"]
    beyond = command["beyond_a_step_ms"]
    told.row(
        "command to applied, beyond a step (budget 10 ms)", Figure(beyond["p50"], beyond["p50"], beyond["p99"], "ms"),
        budget=BUDGETS["command"], verdict=kept_if(beyond["p99"] <= COMMAND_BUDGET_MS), samples=beyond["count"],
        note=f"up to p99; in all {command['ms']['p50']:.1f} ms with steps of {command['step_ms']:.1f} ms",
    )  # fmt: skip
    first, second = (each["delays"] for each in two)
    for step_ms, row in first.items():
        late = [at - int(asked) for asked, at in row["acted"].items()]
        together = row["acted"] == second[step_ms]["acted"]
        told.row(
            f"command to applied, two ranks, steps of {step_ms} ms (budget {row['horizon'] + 1} steps, all at one)",
            Figure(min(late), statistics.median(late), max(late), "steps"), budget=BUDGETS["command"],
            verdict=kept_if(together and max(late) <= row["horizon"] + 1), samples=len(late),
        )  # fmt: skip
    for name in ("warm", "cold"):
        row = found[name]
        told.row(
            f"launch to first training step, {name}", Figure.of(row["first_s"], "s"), samples=row["rounds"],
            note="from the supervisor's launch; from the submit on see first_step",
        )  # fmt: skip
        told.row(f"pause to gone, {name}", Figure.of(row["gone_s"], "s"), samples=row["rounds"])
    return told


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as-client", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if options.as_client:
        client_main(options.as_client, options.count)
    elif options.as_rank:
        rank_main(options.as_rank, options.steps)
    elif options.side:
        side(options.side)
    else:
        with tempfile.TemporaryDirectory(prefix="tunefleet-bench-") as name:
            found = measure(options, Path(name))
        report(found)
        told = written(found, Report("control", quick=options.quick))
        told.write(options.json)
        return int(any(row.verdict == "BROKEN" for row in told.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
