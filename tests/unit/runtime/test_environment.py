"""What a trainer's environment holds, and what a forked one would come too late for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tunefleet.errors import MachineError
from tunefleet.runtime import environment
from tunefleet.runtime.environment import at_import, core_count, job_environment, needs_cold_start, thread_count
from tunefleet.settings import ServerSettings, inherited_environment, load
from tunefleet.spec import dump_task_spec, parse_workflow

BASE = {"PATH": "/bin", "HF_HOME": "/hf", "CUDA_VISIBLE_DEVICES": "0,1"}
NO_GPU = {"resources": {"hardware": {"gpu": {"count": 0}}}}


def devices(**job: Any) -> str | None:
    return job_environment(BASE, job).get("CUDA_VISIBLE_DEVICES")


def test_a_job_sees_the_gpus_that_it_was_given() -> None:
    assert devices(gpus=["GPU-a", "GPU-b"]) == "GPU-a,GPU-b"


def test_fault_29_the_devices_of_one_job_are_nothing_to_the_next_or_to_the_worker() -> None:
    before, base = dict(os.environ), dict(BASE)
    narrow = job_environment(base, {"gpus": ["GPU-b"], "spec": {"training": {"visible_devices": "1"}}})
    assert narrow["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert job_environment(base, {"gpus": ["GPU-a", "GPU-b"]})["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    assert (base, dict(os.environ)) == (BASE, before)


def test_a_job_that_wants_no_gpu_sees_none() -> None:
    assert devices(spec=NO_GPU) == ""
    assert devices(spec={"enforce_cpu": True}) == ""
    document = """
        apiVersion: tunefleet/v1
        kind: LoRASFTTask
        spec:
          taskType: lora_sft
          model: {source: {identifier: "builtin:gsm8k-llama-2m"}}
          data: {path: "builtin:gsm8k", prompt_column: question, response_column: answer}
          resources: {hardware: {gpu: {count: 0}}}
    """
    assert devices(spec=dump_task_spec(parse_workflow(document).tasks[0].spec)) == ""


@pytest.mark.parametrize(
    "spec", [{}, {"resources": None}, {"resources": {"hardware": {"gpu": {"count": 1}}}}, {"a": 1}]
)
def test_a_job_that_said_nothing_and_was_given_nothing_is_left_alone(spec: dict[str, Any]) -> None:
    assert devices(spec=spec) == "0,1"
    assert "CUDA_VISIBLE_DEVICES" not in job_environment({}, {"spec": spec})


def test_a_jobs_own_variables_win_but_not_over_its_gpus() -> None:
    found = job_environment(BASE, {"env": {"PATH": "/x", "CUDA_VISIBLE_DEVICES": "7"}, "gpus": ["GPU-a"]})
    assert (found["PATH"], found["HF_HOME"], found["CUDA_VISIBLE_DEVICES"]) == ("/x", "/hf", "GPU-a")


def test_a_job_inherits_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNEFLEET_KEY", "TUNEFLEET_WORKER_KEY", "ORCHESTRATOR_TOKEN"):
        monkeypatch.setenv(name, "tf_secret")
    assert "tf_secret" not in inherited_environment().values()


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({}, None),
        ({"env": {"OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}}, None),
        ({"env": {"HF_HOME": "/hf"}}, None),
        ({"env": {"HF_HOME": "/other"}}, "it sets HF_HOME, which is read at import"),
        ({"env": {"PYTHONPATH": "/x"}}, "it sets PYTHONPATH, which is read at import"),
        ({"env": {"HOME": "/x"}}, "it sets HOME, which is read at import"),
        ({"processes": 2}, "it has several processes"),
    ],
)
def test_what_is_read_at_import_needs_a_fresh_interpreter(job: dict[str, Any], reason: str | None) -> None:
    assert needs_cold_start(BASE, job) == reason


@pytest.mark.parametrize(("given", "threads"), [("3", 3), ("", None), ("0", None), ("many", None), ("4,2", None)])
def test_threads_are_what_the_environment_says_or_the_cores(given: str, threads: int | None) -> None:
    assert thread_count({"OMP_NUM_THREADS": given}) == (threads or core_count())


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 8), ("150000 100000", 2), ("1000 100000", 1), ("odd", 8)])
def test_a_containers_quota_counts(quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpu.max").write_text(quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(environment, "_QUOTA", tmp_path / "cpu.max")
    assert core_count() == cores


def test_what_names_one_process_of_ours_is_no_matter_of_imports() -> None:
    own = {"WORKER_ID": "a", "RESULTS_DIR": "/r", "TUNEFLEET_HOME": "/h", "PWD": "/", "HOST_APP_PORT": "1"}
    own |= {"ENABLE_ELASTIC_SCALING": "false", "ELASTIC_AUTO_POLL_INTERVAL_SEC": "1", "REDIS_URL": "redis://h:1/0"}
    own |= {"BACKEND_URL": "http://h:1", "MODELS_DIR": "/m", "POLL_ENABLED": "false"}
    shared = {"PATH": "/bin", "HF_TOKEN": "x", "CUDA_VISIBLE_DEVICES": "0", "SOMETHING": "else", "OMP_WAIT_POLICY": "P"}
    assert at_import({**own, **shared}) == shared


def test_an_invalid_address_is_reported_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_PEER_URL", "ftp://admin:hushhush@host")
    with pytest.raises(MachineError, match=r"TUNEFLEET_PEER_URL .*'ftp://\*+@host'") as failed:
        load(ServerSettings)
    assert "hushhush" not in str(failed.value)
