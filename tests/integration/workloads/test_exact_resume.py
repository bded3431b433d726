"""A training that was killed or paused ends with the very weights of one that never was.

Real processes, forked from a warm server. `TUNEFLEET_EXACT_ROUNDS=20` plays more rounds of each case, with other seeds
and moments; a round's moment follows from its number alone. Of two rounds of a case one is killed and one is paused.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workloads.conftest import LORA, merge
from tests.libraries import required
from tunefleet.runtime import JobHandle, Supervisor, new_launch_id
from tunefleet.schemas.job_folder import Job, JobProcess
from tunefleet.settings import inherited_environment
from tunefleet.workloads import assets

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.proof]

ROUNDS = int(os.environ.get("TUNEFLEET_EXACT_ROUNDS", "1"))
STEPS = 60
_FULL = {"taskType": "sft", "lora": None}
_DROPOUT = {"lora": {"dropout": 0.1}}
_EVALUATED = {
    "training": {"eval_strategy": "steps", "eval_steps": 5},
    "predictions": {"sample_count": 2, "max_new_tokens": 3, "sample_frequency": 2},
}
_JSONL: dict[str, Any] = {"path": None, "jsonl_path": "ROWS.jsonl", "streaming": True, "shuffle_buffer": 20}
CASES: dict[str, dict[str, Any]] = {
    # An evaluation in the step of a save draws random numbers before the save.
    "full, shuffled, evaluated": merge(_FULL, _EVALUATED),
    "lora with dropout, evaluated": merge(_DROPOUT, _EVALUATED),
    "packing": {**_DROPOUT, "training": {"packing": True, "batch_size": 1}},
    "checkpoints in the background, compressed": {
        **_DROPOUT,
        "checkpoint": {"asynchronous": True, "compress": "zstd"},
        "lora": {"dropout": 0.1, "r": 16},
    },
    "accumulation": {**_DROPOUT, "training": {"gradient_accumulation_steps": 2}},
    "stream": {**_DROPOUT, "data": _JSONL},
    "stream, packed, accumulated, read ahead": {
        **_DROPOUT,
        "data": _JSONL,
        "training": {"packing": True, "batch_size": 1, "gradient_accumulation_steps": 2, "dataloader_num_workers": 1},
    },
}
SHORT = (
    "full, shuffled, evaluated",
    "checkpoints in the background, compressed",
    "stream, packed, accumulated, read ahead",
)
"""What `make test` plays: between them all that a checkpoint has to carry, and both kinds of end. The rest is for
`make proofs`."""


@pytest.fixture(scope="module")
def supervisor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Supervisor]:
    home = tmp_path_factory.mktemp("exact")
    environment = {**inherited_environment(), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    supervisor = Supervisor(home / "results", endpoints_dir=home / "jobs", base_env=environment)
    yield supervisor
    supervisor.close()


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of the shipped dataset, as a file that can be streamed."""
    from tunefleet.workloads.data.readers import read_path

    file = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    some = [read_path(assets.locate("builtin:gsm8k", "dataset"), "train")[index] for index in range(70)]
    file.write_text("".join(json.dumps(dict(row)) + "\n" for row in some))
    return file


class Run:
    """One training, in one launch or in several."""

    def __init__(self, supervisor: Supervisor, job_id: str, spec: dict[str, Any]) -> None:
        self._supervisor, self.job_id, self._spec = supervisor, job_id, spec
        self.folder = supervisor.folder(job_id)
        self.launches: list[str] = []
        self.handle = self.launch()

    def launch(self) -> JobHandle:
        launch = new_launch_id()
        self.launches.append(launch)
        ids = {"job_id": self.job_id, "task_id": self.job_id, "attempt": 1, "launch": launch, "name": "exact"}
        program = "tunefleet.workloads.training:main"
        self.handle = self._supervisor.launch(Job(**ids, kind="lora_sft", program=program, spec=self._spec))
        return self.handle

    def until(self, condition: Any) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, self.folder.log.read_text()[-2000:]
            time.sleep(0.005)

    def finish(self) -> None:
        self.until(lambda: self.handle.poll() is not None)
        end = self.handle.poll()
        assert end is not None
        assert end.outcome == "completed", (end, self.folder.log.read_text()[-3000:])

    def kill_after(self, step: int) -> None:
        """SIGKILL once a checkpoint of that step or a later one is whole."""
        self.until(lambda: self.newest() >= step or self.handle.poll() is not None)
        os.kill(JobProcess.model_validate_json(self.folder.process_json.read_bytes()).pid, signal.SIGKILL)
        self.until(lambda: self.handle.poll() is not None)

    def pause_at(self, step: int) -> None:
        """Pause once a checkpoint of that step or a later one is whole: at a step that need not be one of those."""
        self.until(lambda: self.newest() >= step or self.handle.poll())
        self.handle.command("pause", {}, f"pause-{self.launches[-1]}")
        self.until(lambda: self.handle.poll() is not None)
        end = self.handle.poll()
        assert end is not None
        assert end.outcome == "paused", (end, self.folder.log.read_text()[-3000:])

    def newest(self) -> int:
        whole = self.folder.checkpoints_dir.glob("checkpoint-*/manifest.json")
        return max((int(file.parent.name.rpartition("-")[2]) for file in whole), default=0)

    def series(self) -> list[tuple[int, int, float]]:
        """The points that count: a launch hides those of earlier ones beyond its first step."""
        points: list[tuple[int, int, float]] = []
        for launch in self.launches:
            lines = (self.folder.journal_dir / f"{launch}.jsonl").read_text().splitlines()
            records = [json.loads(line) for line in lines]
            first = records[0]["from_step"]
            points = [point for point in points if point[1] <= first]
            metrics = [record for record in records if record["type"] == "metric" and "loss" in record["values"]]
            points += [(*record["window"], record["values"]["loss"]) for record in metrics]
        return points

    def digests(self) -> dict[str, str]:
        """One digest for each tensor of the product, of the optimizer's state and of the random state at the end."""
        import torch
        from safetensors.torch import load_file

        from tunefleet.workloads.training.checkpoint_compression import decompressed

        (file,) = self.folder.root.glob("final_*/*.safetensors")
        last = decompressed(self.folder.checkpoints_dir / f"checkpoint-{STEPS}", self.folder.root / "unpacked")
        found = {name: _digest(value) for name, value in load_file(file).items()}
        state = torch.load(last / "optimizer.pt", weights_only=True)["state"]
        found |= {f"{i}.{name}": _digest(v) for i, values in state.items() for name, v in values.items()}
        random_state = torch.load(last / "rng_state.pth", weights_only=False)
        return found | {"random": _digest(random_state["cpu"]), "python": str(hash(random_state["python"]))}

    def texts(self) -> list[tuple[int, int, str]]:
        """What was written at evaluations; a launch that resumes writes what comes after its step."""
        found = set()
        for launch in self.launches:
            for line in (self.folder.journal_dir / f"{launch}.jsonl").read_text().splitlines():
                record = json.loads(line)
                if record["type"] == "prediction":
                    found.add((record["step"], record["index"], record["output"]))
        return sorted(found)


def _digest(value: Any) -> str:
    return hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", range(ROUNDS), ids=lambda number: f"round-{number}")
@pytest.mark.parametrize("case", [case if case in SHORT else pytest.param(case) for case in CASES])
def test_weights_are_those_of_a_training_that_was_never_killed(
    case: str, number: int, supervisor: Supervisor, rows: Path, tiny_model: Path
) -> None:
    common = {
        "model": {"source": {"identifier": str(tiny_model)}},
        "training": {"max_steps": STEPS, "save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "cosine"},
    }
    spec = merge(merge({**LORA, "model": {}}, common), CASES[case])
    if "jsonl_path" in spec["data"]:
        spec["data"]["jsonl_path"] = str(rows)
    spec["training"]["seed"] = number
    index = list(CASES).index(case)
    name = f"{index}-{number}"
    moment = random.Random(name).randint(1, STEPS - 25)
    straight, broken = Run(supervisor, f"straight-{name}", spec), Run(supervisor, f"broken-{name}", spec)
    if (index + number) % 2 == 0:
        broken.pause_at(moment)
    else:
        broken.kill_after(moment)
    broken.launch()
    straight.finish()
    broken.finish()
    first = json.loads((broken.folder.journal_dir / f"{broken.launches[-1]}.jsonl").read_text().splitlines()[0])
    assert moment <= first["from_step"] < STEPS, "it ended in the midst of the training, with a whole checkpoint"
    assert [point[:2] for point in broken.series()] == [(step, step) for step in range(1, STEPS + 1)]
    assert broken.series() == straight.series()
    assert broken.digests() == straight.digests()
    assert broken.texts() == straight.texts()
    again = broken.folder.log.read_text().count("tokenized rows from an earlier launch")
    tables = 1 + ("jsonl_path" not in spec["data"]) + (case == "packing")
    assert again == tables, "the second launch tokenises nothing"
    assert not broken.folder.tokens_dir.exists(), "and what it has spared is no more of use"
