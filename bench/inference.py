"""What our inference costs beside its engine called by hand, and beside the library alone; all in one run.

    python bench/inference.py            # some minutes
    python bench/inference.py --quick    # about a minute; wider interval

The same prompts, greedily, so that all sides have the same tokens to make:

ours        the program of an `inference` task in a job folder, from its call to its result on disk: items, chat
            template, answers written as they come, journal; the engine is a warm process, asked over a socket
engine      the same engine in this process, given all prompts at once
library     `generate` of Transformers, in batches of 32 sorted by length

1. ours ÷ engine. Budget: 1.10.
2. ours ÷ library, which says what the engine itself costs or gains. No budget.

They take turns; the intervals are bootstraps over rounds. A small model makes this the worst case: the more a token
costs, the less anything around it counts.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from _common import interval, status, verdict
from _report import Figure, Peer, Ratio, Report, version_here
from transformers import AutoModelForCausalLM

from tunefleet.runtime.warm import engine_registry as warm
from tunefleet.settings import EngineSettings, load
from tunefleet.trainer_control import session
from tunefleet.workloads import assets, inference
from tunefleet.workloads.common import base_model
from tunefleet.workloads.engine.protocol import Engine, EngineModel, Request, Sampling
from tunefleet.workloads.engine.server import open_engine

MODEL = "builtin:gsm8k-llama-2m"
BUDGET = 1.10
MAX_TOKENS = 32
BATCH = 32


def ours(root: Path, number: int, prompts: Sequence[str]) -> dict[str, Any]:
    """Run an inference in a job folder of its own; returns its result."""
    folder = root / f"job-{number}"
    folder.mkdir()
    spec = {
        "taskType": "inference",
        "model": {"source": {"identifier": MODEL}},
        "data": {"type": "list", "items": list(prompts)},
        "inference": {"temperature": 0, "max_tokens": MAX_TOKENS},
    }
    job = {"job_id": folder.name, "task_id": folder.name, "attempt": 1, "launch": "launch", "kind": "inference"}
    job |= {"name": "bench", "program": "tunefleet.workloads.inference:main", "spec": spec}
    (folder / "job.json").write_text(json.dumps(job))
    inference.main(folder)
    session.open_session(folder).close()
    found: dict[str, Any] = json.loads((folder / "responses.json").read_bytes())
    return found


def by_engine(engine: Engine, prompts: Sequence[str]) -> list[str]:
    """Ask the engine, in this process."""
    sampling = Sampling(temperature=0, max_tokens=MAX_TOKENS)
    requests = [
        Request(at, engine.render([{"role": "user", "content": text}]), sampling) for at, text in enumerate(prompts)
    ]
    answers = {answer.key: answer.choices[0].text for answer in engine.generate(requests)}
    return [answers[at] for at in range(len(prompts))]


class Library:
    """The model, loaded and asked with Transformers alone."""

    def __init__(self) -> None:
        path = str(assets.locate(MODEL, "model"))
        self._model = AutoModelForCausalLM.from_pretrained(path).eval()
        self._tokenizer = base_model.load_tokenizer(base_model.Source(MODEL, path))
        self._tokenizer.padding_side = "left"

    def __call__(self, prompts: Sequence[str]) -> list[str]:
        """Answer all prompts, the longest first."""
        with torch.inference_mode():
            return self._answer(prompts)

    def _answer(self, prompts: Sequence[str]) -> list[str]:
        texts = [
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
            )
            for text in prompts
        ]
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
        found = [""] * len(texts)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            ids = self._tokenizer([texts[at] for at in places], padding=True, return_tensors="pt")
            made = self._model.generate(
                input_ids=ids["input_ids"], attention_mask=ids["attention_mask"], max_new_tokens=MAX_TOKENS,
                do_sample=False, pad_token_id=self._tokenizer.pad_token_id,
            )  # fmt: skip
            answers = self._tokenizer.batch_decode(made[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
            for at, answer in zip(places, answers, strict=True):
                found[at] = answer
        return found


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return how long a call took, and what it gave."""
    started = time.perf_counter()
    given = call()
    return time.perf_counter() - started, given


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found there as well")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rounds, count = (5, 128) if options.quick else (15, 256)
    rows = (assets.locate("builtin:gsm8k", "dataset") / "train.jsonl").read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(row)["question"] for row in rows[:count]]
    spent: dict[str, list[float]] = {"ours": [], "engine": [], "library": []}
    with tempfile.TemporaryDirectory(prefix="inference-") as name:
        root = Path(name)
        os.environ["TUNEFLEET_HOME"] = str(root / "home")
        engine = open_engine(EngineModel(path=str(assets.locate(MODEL, "model")), identifier=MODEL))
        library = Library()
        first = ours(root, 0, prompts)
        texts = [item["output"] for item in first["items"]]
        same = {"engine": by_engine(engine, prompts) == texts, "library": library(prompts) == texts}
        for number in range(1, rounds + 1):
            sides: dict[str, Callable[[], Any]] = {
                "ours": partial(ours, root, number, prompts),
                "engine": lambda: by_engine(engine, prompts),
                "library": lambda: library(prompts),
            }
            names = list(sides)
            for side in names[number % 3 :] + names[: number % 3]:
                spent[side].append(timed(sides[side])[0])
            print(f"  round {number} of {rounds}", flush=True)
        warm.end_idle(str(load(EngineSettings, _env_file=None).endpoints_dir.absolute()))
    tokens = first["usage"]["completion_tokens"]
    return report(spent, same, tokens, count, Report("inference", quick=options.quick), options.json)


def report(
    spent: dict[str, list[float]], same: dict[str, bool], tokens: int, prompts: int, told: Report, file: Path | None
) -> int:
    """Print and write the ratios; returns the exit status."""
    found: dict[str, Any] = {"prompts": prompts, "tokens": tokens, "rounds": len(spent["ours"]), "same_answers": same}
    found |= {f"{name}_s": statistics.median(values) for name, values in spent.items()}
    for name in ("engine", "library"):
        ratios = [mine / theirs for mine, theirs in zip(spent["ours"], spent[name], strict=True)]
        low, high = interval(ratios)
        found[f"ours_per_{name}"] = {"ratio": statistics.median(ratios), "low": low, "high": high}
    bounds = found["ours_per_engine"]
    kept = verdict(bounds["low"], bounds["high"], BUDGET)
    found["budget"] = kept
    for name, peer in (("engine", "its engine called by hand"), ("library", "Transformers generate")):
        each = found[f"ours_per_{name}"]
        told.row(
            f"{prompts} prompts answered by a task (ratio: our time ÷ the other's)",
            Figure.of(spent["ours"], "s"),
            Peer.of(peer, version_here("transformers"), spent[name], "s"),
            ratio=Ratio(each["ratio"], each["low"], each["high"]),
            samples=len(spent["ours"]),
            note=f"{tokens} tokens; the same answers: {'yes' if same[name] else 'NO'}"
            + (f"; our own limit 1.10: {kept}" if name == "engine" else ""),
        )
    told.write(file)
    print(f"{prompts} prompts, {tokens} tokens to make, {found['rounds']} rounds, medians:")
    for name in spent:
        agree = "" if name == "ours" else f"; the same answers: {'yes' if same[name] else 'NO'}"
        print(f"  {name:<8} {found[f'{name}_s']:8.3f} s, {tokens / found[f'{name}_s']:8.0f} tokens/s{agree}")
    for name in ("engine", "library"):
        each = found[f"ours_per_{name}"]
        print(f"  ours ÷ {name:<8} {each['ratio']:.3f}, 95 % interval {each['low']:.3f} to {each['high']:.3f}")
    print(f"  budget {BUDGET} of ours ÷ engine: {kept}")
    return status(kept)


if __name__ == "__main__":
    sys.exit(main())
