"""What one NVIDIA GPU shows that no machine without one can: each test is skipped where there is none."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.conftest import SPEC
from tests.integration.workloads.conftest import merge
from tests.integration.workloads.test_exact_resume import Run
from tests.libraries import required
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobHandle, Supervisor, new_launch_id
from tunefleet.runtime.gpu import info
from tunefleet.runtime.gpu.gpu_locks import holder, ledger_dir
from tunefleet.runtime.gpu.info import GpuFigures
from tunefleet.runtime.monitor import guard
from tunefleet.schemas.job_folder import Job, JobProcess

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.proof, pytest.mark.timeout(240)]

GIB = 1 << 30


class Trained:
    """A training that has ended; `end` says how."""

    def __init__(self, handle: JobHandle) -> None:
        self.handle, self.root = handle, handle.folder.root
        self.end = handle.wait(200)
        assert self.end is not None, self.log

    @property
    def log(self) -> str:
        return self.handle.folder.log.read_text(errors="replace")[-6000:]

    @property
    def result(self) -> dict[str, Any]:
        assert self.end is not None
        assert self.end.outcome == "completed", (self.end, self.log)
        found: dict[str, Any] = json.loads(self.handle.folder.responses_json.read_bytes())
        return found

    def records(self, kind: str) -> list[dict[str, Any]]:
        (file,) = self.handle.folder.journal_dir.glob("*.jsonl")
        return [record for record in map(json.loads, file.read_text().splitlines()) if record["type"] == kind]

    @property
    def losses(self) -> list[float]:
        return [each["values"]["loss"] for each in self.records("metric") if "loss" in each["values"]]


Begin = Callable[..., JobHandle]


@pytest.fixture
def begin(supervisor: Supervisor, model: Path, card: GpuFigures, request: pytest.FixtureRequest) -> Begin:
    """Start a training with the card; `changes` are to its spec."""

    def go(changes: dict[str, Any] | None = None, *, name: str = "", **more: Any) -> JobHandle:
        job_id = f"{request.node.name.replace('[', '-').strip(']')}{name}"
        spec = merge({**SPEC, "model": {"source": {"identifier": str(model)}}}, changes or {})
        return supervisor.launch(
            Job(
                job_id=job_id, task_id=job_id, attempt=1, launch=new_launch_id(), kind="lora_sft", name="gpu",
                program="tunefleet.workloads.training:main", spec=spec, **{"gpus": (card.uuid,), **more},
            )
        )  # fmt: skip

    return go


def users() -> set[int]:
    """Who has opened the card; a driver that names the host's processes, as in a container, names none of ours."""
    return {process.pid for process in info.read_gpus()[0].processes or ()}


def until_free(supervisor: Supervisor, card: GpuFigures) -> None:
    """Wait for the end of the claim: a keeper says how its job ended, and is gone a moment later."""
    deadline = time.monotonic() + 1
    while held := holder(ledger_dir(supervisor.endpoints_dir), card.uuid):
        assert time.monotonic() < deadline, f"the card is still claimed by {held}"
        time.sleep(0.01)


def test_the_driver_and_its_program_tell_the_same(card: GpuFigures) -> None:
    if card.uuid.startswith("MIG-"):
        pytest.skip("nvidia-smi lists the whole GPU where NVML gives an instance of it")
    said, total = info._by_smi()[0], card.memory_total_bytes
    assert (said.uuid, said.index, said.name) == (card.uuid, card.index, card.name)
    assert said.memory_total_bytes is not None
    assert total is not None
    assert said.memory_total_bytes == pytest.approx(total, rel=0.02)
    for figures in (card, said):
        assert figures.uuid.startswith(("GPU-", "MIG-"))
        assert (figures.memory_free_bytes or 0) > GIB
        assert 0 < (figures.temperature_c or 0) < 110
        assert 0 < (figures.power_w or 0) < 1500
        assert figures.utilisation_percent is not None
    driver = info.read_driver()
    assert driver.version is not None
    assert float(driver.cuda or 0) >= 11


def test_a_training_takes_the_card_it_was_given_in_bf16_and_tells_its_memory(
    begin: Begin, supervisor: Supervisor, card: GpuFigures
) -> None:
    handle = begin()
    seen, held = set[int](), set[str]()
    while handle.poll() is None:
        seen |= users()
        held.add(str(holder(ledger_dir(supervisor.endpoints_dir), card.uuid)))
        time.sleep(0.1)
    one = Trained(handle)
    used, memory = one.result["used"], one.result["memory"]
    assert (used["device"], used["compute_dtype"]) == ("cuda", "bfloat16")
    assert used["optimizer_fused"], "the fused optimizer is the faster one on a GPU"
    assert one.losses[-1] < one.losses[0]
    assert memory["device"] == "cuda"
    assert 0.2 * GIB < memory["peak_bytes"] < 20 * GIB
    assert memory["peak_bytes"] / 3 < memory["estimated_bytes"] < memory["peak_bytes"] * 3
    progress = one.records("progress")
    assert max(each.get("gpu_bytes") or 0 for each in progress) >= memory["peak_bytes"] * 0.5
    process = JobProcess.model_validate_json(handle.folder.process_json.read_bytes())
    assert process.pid in seen, "the driver names the job's own process"
    assert any(handle.job.job_id in each for each in held), "the card was claimed for it"
    assert process.warm, "it was forked"
    assert supervisor._warm is not None
    opened = [os.readlink(link) for link in Path(f"/proc/{supervisor._warm.server_pid()}/fd").iterdir()]  # noqa: PTH115
    assert not [name for name in opened if name.startswith("/dev/nvidia")], "and the server has no device open"
    until_free(supervisor, card)


def test_one_that_wants_no_gpu_sees_none(begin: Begin) -> None:
    one = Trained(begin({"resources": {"hardware": {"gpu": {"count": 0}}}, "training": {"max_steps": 2}}, gpus=()))
    assert one.result["used"]["device"] == "cpu"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"quantization": {"load_in_4bit": True}}, id="4-bit"),
        pytest.param({"quantization": {"load_in_8bit": True}}, id="8-bit"),
        pytest.param({"training": {"optim": "paged_adamw_8bit"}}, id="paged-optimizer"),
        pytest.param({"training": {"fp16": True, "learning_rate": 2e-4}}, id="fp16"),
        pytest.param({"training": {"packing": True}}, id="packing"),
        pytest.param({"taskType": "sft", "lora": None, "training": {"learning_rate": 1e-4}}, id="all-weights"),
        pytest.param({"lora": {"use_dora": True}}, id="dora"),
    ],
)
def test_what_only_a_gpu_computes_learns(begin: Begin, changes: dict[str, Any]) -> None:
    one = Trained(begin(changes))
    used = one.result["used"]
    assert used["device"] == "cuda"
    assert one.losses[-1] < one.losses[0]
    if "quantization" in changes:
        assert used["quantization"] is not None
    if changes.get("training", {}).get("fp16"):
        assert used["compute_dtype"] == "float16"


_SAVES = {"training": {"max_steps": 60, "save_strategy": "steps", "save_steps": 5, "lr_scheduler_type": "cosine"}}


@pytest.mark.parametrize("how", ["paused", "killed"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="lora"),
        pytest.param({"quantization": {"load_in_4bit": True}}, id="4-bit"),
        pytest.param({"training": {"fp16": True, "learning_rate": 2e-4}}, id="fp16"),
        pytest.param({"checkpoint": {"asynchronous": True, "compress": "zstd"}}, id="background"),
    ],
)
def test_one_that_ended_early_goes_on_to_the_same_weights(
    supervisor: Supervisor, model: Path, changes: dict[str, Any], how: str, request: pytest.FixtureRequest
) -> None:
    spec = merge(merge({**SPEC, "model": {"source": {"identifier": str(model)}}}, _SAVES), changes)
    name = request.node.name.rpartition("[")[2].strip("]")
    straight, broken = Run(supervisor, f"straight-{name}", spec), Run(supervisor, f"broken-{name}", spec)
    (broken.pause_at if how == "paused" else broken.kill_after)(20)
    broken.launch()
    straight.finish()
    broken.finish()
    assert broken.series() == straight.series()
    assert broken.digests() == straight.digests()


def test_one_that_needs_more_memory_than_it_may_take_says_so_and_fits_with_smaller_batches(
    begin: Begin, supervisor: Supervisor
) -> None:
    handle = begin(
        {"training": {"batch_size": 128, "max_seq_length": 512, "max_steps": 2, "gradient_checkpointing": False}},
        env={"TUNEFLEET_GPU_MEMORY_FRACTION": "0.05"},
    )
    tries = 0
    while True:
        one = Trained(handle)
        assert one.end is not None
        if one.end.outcome == "completed":
            break
        assert one.end.reason is TaskReason.OUT_OF_MEMORY, (one.end, one.log)
        job = handle.job.model_copy(update={"launch": new_launch_id()})
        assert guard.retry_plan(handle.folder, job.spec, one.end.reason, handle.job.launch), one.log
        handle, tries = supervisor.launch(job), tries + 1
    assert tries, "the first one was to be too large"
    assert one.result["overrides"]["batch_size"] == 128 >> tries
    assert one.result["used"]["batch_size"] == 128
    assert one.result["memory"]["peak_bytes"] < 0.05 * (info.read_gpus()[0].memory_total_bytes or 0)


def test_a_stopped_job_gives_the_card_back(begin: Begin, supervisor: Supervisor, card: GpuFigures) -> None:
    handle = begin({"training": {"max_steps": 100_000}})
    deadline = time.monotonic() + 90
    while (status := handle.status()) is None or not status.step:
        assert handle.poll() is None, handle.folder.log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    pid = JobProcess.model_validate_json(handle.folder.process_json.read_bytes()).pid
    assert pid in users()
    os.kill(pid, signal.SIGKILL)
    assert handle.wait(30) is not None
    deadline = time.monotonic() + 20
    while pid in users():
        assert time.monotonic() < deadline, "its memory is still held"
        time.sleep(0.2)
    until_free(supervisor, card)
