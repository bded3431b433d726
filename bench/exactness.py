"""Whether a training that was killed at a random moment goes on exactly as one that was not, beside the stock Trainer.

    python bench/exactness.py --json FILE            # about six minutes
    python bench/exactness.py --json FILE --quick    # about one minute

Of each kind (rows by index; rows as a stream) one training runs through. Others are killed with SIGKILL at a random
moment and started again, which goes on from the newest checkpoint; the losses of all the steps since that checkpoint
must be those of the first one, bit for bit. Ours is the training program with a LoRA, dropout and streaming as a user
has them; the stock Trainer trains a small model with dropout, and is given the newest folder by
`get_last_checkpoint`, as its documentation says. A start of the stock one that fails (a half-written checkpoint) counts
as not equal.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _common import BROKEN_STATUS
from _limit import end_after
from _report import BUDGETS, Figure, Peer, Report, kept_if, version_here

from tunefleet.workloads import assets
from tunefleet.workloads.data.readers import read_path

STEPS, SAVE_EVERY = 60, 7
KINDS = ("map", "stream")
PATIENCE_S = 240.0
LIMIT_S = 1200
RUN = Path(__file__).with_name("_exactness_run.py")
Series = dict[int, float]


def start_ours(kind: str, folder: Path, launch: int, rows: Path) -> list[str]:
    """Write the job of a launch; returns its command."""
    folder.mkdir(exist_ok=True)
    data: dict[str, Any] = {
        "path": str(rows), "prompt_column": "question", "response_column": "answer", "separator": "\n",
        "streaming": kind == "stream",
    }  # fmt: skip
    spec = {
        "taskType": "lora_sft",
        "model": {"source": {"identifier": str(assets.locate("builtin:gsm8k-llama-2m", "model"))}},
        "data": data,
        "lora": {"r": 4, "alpha": 8, "target_modules": "all-linear", "dropout": 0.1},
        "training": {
            "max_steps": STEPS, "batch_size": 2, "learning_rate": 1e-2, "logging_steps": 1, "max_seq_length": 64,
            "save_strategy": "steps", "save_steps": SAVE_EVERY, "seed": 3,
        },
    }  # fmt: skip
    job = {"job_id": "j", "task_id": "j", "attempt": 1, "launch": f"launch-{launch}", "kind": "lora_sft", "name": "t"}
    job |= {"program": "tunefleet.workloads.training:main", "spec": spec, "inputs": {}}
    (folder / "job.json").write_text(json.dumps(job))
    return [sys.executable, "-m", "tunefleet.workloads.entrypoint", str(folder)]


def losses_of(who: str, folder: Path, launch: int) -> Series:
    """Return step → loss of a launch; the stock Trainer's file has all launches, and the later ones count."""
    if who == "stock":
        file = folder / "losses.jsonl"
        return dict(json.loads(line) for line in file.read_text().splitlines()) if file.exists() else {}
    file = folder / "journal" / f"launch-{launch}.jsonl"
    text = file.read_text() if file.exists() else ""
    records = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {each["step"]: each["values"]["loss"] for each in records if "loss" in each.get("values", {})}


def launched(who: str, kind: str, folder: Path, launch: int, rows: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    stock = [sys.executable, str(RUN), kind, str(folder), str(STEPS), str(SAVE_EVERY)]
    words = start_ours(kind, folder, launch, rows) if who == "ours" else stock
    with (folder / f"log-{launch}").open("wb") as log:
        return subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)


def ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for a launch; kills it, with what it has started, if it takes too long."""
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        return -1
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def straight(who: str, kind: str, root: Path, rows: Path) -> Series:
    """Train without a kill."""
    folder = root / f"{who}-{kind}"
    if ended(launched(who, kind, folder, 0, rows)):
        raise SystemExit(f"{who} {kind}: {(folder / 'log-0').read_text()[-3000:]}")
    return losses_of(who, folder, 0)


def equal(who: str, kind: str, folder: Path, rows: Path, whole: Series, kill_at: int) -> bool:
    """Kill a training at a step and start it again; returns whether all it trained then is the same."""
    process, deadline = launched(who, kind, folder, 0, rows), time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if max(losses_of(who, folder, 0), default=0) >= kill_at:
                break
            time.sleep(0.002)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    (folder / "losses.jsonl").unlink(missing_ok=True)
    if ended(launched(who, kind, folder, 1, rows)):
        return False
    again = losses_of(who, folder, 1)
    return bool(again) and max(again) == STEPS and all(whole[step] == loss for step, loss in again.items())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="Where the report goes.")
    parser.add_argument("--quick", action="store_true", help="One kill of each.")
    options = parser.parse_args()
    end_after(LIMIT_S)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    kills, chance = (1 if options.quick else 8), random.Random(0)
    report, broken = Report("exactness", quick=options.quick), False
    with tempfile.TemporaryDirectory(prefix="exactness-", ignore_cleanup_errors=True) as name:
        root = Path(name)
        rows, some = root / "rows.jsonl", read_path(assets.locate("builtin:gsm8k", "dataset"), "train")
        rows.write_text("".join(json.dumps(dict(some[index])) + "\n" for index in range(70)))
        for kind in KINDS:
            whole = {who: straight(who, kind, root, rows) for who in ("ours", "stock")}
            same = {"ours": 0, "stock": 0}
            for number in range(kills):
                kill_at = chance.randint(SAVE_EVERY + 1, STEPS - 10)
                for who in same:
                    same[who] += equal(who, kind, root / f"{who}-{kind}-{number}", rows, whole[who], kill_at)
            print(f"{kind:7} equal after a kill: ours {same['ours']} of {kills}, stock {same['stock']} of {kills}")
            broken |= same["ours"] < kills
            report.row(
                f"runs that resume bit for bit after SIGKILL, rows {'by index' if kind == 'map' else 'as a stream'}",
                Figure.exactly(same["ours"], f"of {kills}"),
                Peer.of("Trainer", version_here("transformers"), [float(same["stock"])], f"of {kills}"),
                budget=BUDGETS["resume"], verdict=kept_if(same["ours"] == kills), samples=kills,
                note=f"{STEPS} steps, a checkpoint every {SAVE_EVERY}, killed at a random step",
            )  # fmt: skip
    report.write(options.json)
    return BROKEN_STATUS if broken else 0


if __name__ == "__main__":
    sys.exit(main())
