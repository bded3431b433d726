"""How soon a training makes its first step after it was submitted: server, worker and job as `tunefleet up` has them.

    python bench/first_step.py            # about a minute
    python bench/first_step.py --quick

From the client's submit over HTTP to the first metric in the job's journal, of the shipped model of 2.2 million
parameters with LoRA, on an idle fleet of one worker whose fork server has its imports. Beside it what an interpreter
takes that only imports the training libraries: the floor of any start that is cold. Budget: 1.5 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from _common import BROKEN_STATUS, free_port
from _limit import end_after
from _report import BUDGETS, Figure, Peer, Ratio, Report, kept_if, version_here

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

BUDGET_S = 1.5
WARM_S = 20.0
PATIENCE_S = 60.0
LIMIT_S = 600
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TUNEFLEET_LOG_LEVEL": "WARNING"}
LIBRARIES = "import torch, peft; from trl import SFTTrainer"
TRAINING = """apiVersion: tunefleet/v1
kind: Workflow
metadata: {name: first-step}
spec:
  taskType: lora_sft
  model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
  data: {path: "builtin:gsm8k", max_samples: 256, prompt_column: question, response_column: answer}
  training: {max_steps: 5000, batch_size: 2, logging_steps: 1, save_strategy: "no"}
  checkpoint: {upload: false}
"""


def first_step_s(client: Client, data: Path) -> float:
    """Submit a training, and return how long its first step took to come; the training is cancelled then."""
    asked = time.monotonic()
    (task,) = client.submit(TRAINING).workflow.tasks
    while not any('"metric"' in file.read_text() for file in data.glob(f"**/{task.id}/journal/*.jsonl")):
        if time.monotonic() - asked > PATIENCE_S:
            raise SystemExit(f"Its first step did not come within {PATIENCE_S:.0f} s: {client.tasks.get(task.id)}")
        time.sleep(0.002)
    taken = time.monotonic() - asked
    client.tasks.cancel(task.id)
    while client.tasks.get(task.id).status != "cancelled":
        time.sleep(0.1)
    return taken


def imports_s() -> float:
    """Return how long an interpreter takes that only imports the training libraries."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-W", "ignore", "-c", LIBRARIES], check=True, capture_output=True)
    return time.monotonic() - begun


def measure(rounds: int) -> tuple[list[float], list[float]]:
    """Return the times of some trainings, and of as many bare imports, in turns."""
    with TemporaryDirectory(prefix="first-step-", ignore_cleanup_errors=True) as folder:
        data = Path(folder)
        with (
            LocalFleet(data, port=free_port(), workers=1, environment=ENVIRONMENT, save_client=False) as fleet,
            Client(fleet.url, fleet.key) as client,
        ):
            first_step_s(client, data)
            time.sleep(WARM_S)
            turns = [(first_step_s(client, data), imports_s()) for _ in range(rounds)]
    return [ours for ours, _ in turns], [floor for _, floor in turns]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, to prove that it runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    end_after(LIMIT_S)
    ours, floor = measure(2 if options.quick else 9)
    kept = statistics.median(ours) <= BUDGET_S
    print(
        f"submit to first training step, warm   {statistics.median(ours):.2f} s, at most {max(ours):.2f} "
        f"(budget {BUDGET_S} s); importing the libraries alone {statistics.median(floor):.2f} s"
    )
    told = Report("first_step", quick=options.quick)
    told.row(
        "submit to first training step, warm (budget 1.5 s)", Figure.of(ours, "s"),
        Peer.of("an interpreter that imports the training libraries", version_here("torch"), floor, "s"),
        ratio=Ratio.of([mine / bare for mine, bare in zip(ours, floor, strict=True)]),
        budget=BUDGETS["first-step"], verdict=kept_if(kept), samples=len(ours),
    )  # fmt: skip
    told.write(options.json)
    return 0 if kept else BROKEN_STATUS


if __name__ == "__main__":
    sys.exit(main())
