"""Executors: what they tell a worker, and how they are found."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from tunefleet import errors
from tunefleet.executors import base, sft
from tunefleet.executors.base import JobExecutor, LightExecutor, ResultError
from tunefleet.executors.registry import GROUP, installed
from tunefleet.orchestrator.tasks import spec_columns
from tunefleet.placement import LIGHT_KINDS
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import Offer
from tunefleet.spec import load_task_spec
from tunefleet.workloads.external_trainers import trainers


def _offer(kind: str, spec: dict[str, Any] | None = None) -> Offer:
    return Offer(
        token="att-1.mac", task_id="task-1", workflow_id="wf-1", attempt=2, kind=kind, name="tune", spec=spec or {}
    )


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path)


def test_the_installed_kinds_are_found_with_their_class() -> None:
    offers = {offer.kind: offer.slot_class for offer in installed().offers() if offer.available}
    assert offers.items() >= {"echo": "light", "sft": "job", "lora_sft": "job", "dpo": "job"}.items()


def test_the_server_places_all_kinds_of_ours_that_run_inside_the_worker_as_such() -> None:
    registry = installed()
    light = {offer.kind for offer in registry.offers() if offer.slot_class == "light"}
    assert {kind for kind in light if type(registry.find(kind)).__module__.startswith("tunefleet.")} == LIGHT_KINDS


def test_a_fine_tuning_names_the_trainers_that_packages_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("mine", "nobody_imports_this:plan", trainers.GROUP)
    monkeypatch.setattr(trainers, "entry_points", lambda group: [point] if group == trainers.GROUP else [])
    features = {offer.kind: offer.features for offer in installed().offers() if offer.available}
    assert features["sft"] == features["lora_sft"] == {"s3": None, "trainer:mine": None}
    assert features["dpo"] == {"s3": None}, "ours alone trains it"


def test_the_former_names_of_attributes_are_accepted() -> None:
    class Former(JobExecutor):
        heeds = sft.SftExecutor.supported_commands
        talks = True

    class Current(Former):
        supported_commands = frozenset()

    assert Former.supported_commands == sft.SftExecutor.supported_commands
    assert Former.serves_chat
    assert Current.supported_commands == Current.heeds == frozenset()
    assert Current.serves_chat
    assert not JobExecutor.supported_commands


@pytest.mark.parametrize("there", [True, False])
def test_each_kind_says_whether_its_results_can_go_to_a_bucket(monkeypatch: pytest.MonkeyPatch, *, there: bool) -> None:
    monkeypatch.setattr(base, "find_spec", lambda name: object() if there or name != "boto3" else None)
    said = {offer.features["s3"] for offer in installed().offers() if offer.available}
    lacking = "The packages that write to a bucket are not installed (boto3 missing): " + errors.install_command("s3")
    assert said == {None if there else lacking}
    wanted = {"type": "s3", "url": "s3://bucket/a", "access_key": "${secret:A}", "secret_key": "${secret:B}"}
    need = spec_columns.requirement_of(load_task_spec({"taskType": "echo", "output": {"destination": wanted}}))
    assert (need.features, need.secrets) == (("s3",), ("A", "B"))
    assert spec_columns.requirement_of(load_task_spec({"taskType": "echo"})).features == ()


def test_kinds_that_bring_code_are_offered_where_it_may_run() -> None:
    def kinds(allow_code: bool) -> set[str]:
        return {offer.kind for offer in installed().offers(allow_code=allow_code) if offer.available}

    assert kinds(True) - kinds(False) == {"command", "python"}
    (reason,) = {offer.reason for offer in installed().offers(allow_code=False) if offer.kind in {"command", "python"}}
    assert "TUNEFLEET_ALLOW_CODE=true" in (reason or "")


def test_an_executor_that_cannot_be_loaded_is_named_and_the_others_work(caplog: pytest.LogCaptureFixture) -> None:
    points = [
        EntryPoint("broken", "nowhere.to.be_found:Executor", GROUP),
        EntryPoint("echo", "tunefleet.executors.data_and_echo:EchoExecutor", GROUP),
    ]
    registry = installed(points)
    broken = next(offer for offer in registry.offers() if offer.kind == "broken")
    assert not broken.available
    assert "nowhere" in (broken.reason or "")
    assert registry.find("broken") is None
    assert registry.find("echo") is not None


def test_an_executor_of_another_package_takes_the_place_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(LightExecutor):
        kind = "echo"

        def run(self, offer: Offer) -> dict[str, Any]:
            return {"own": True}

    monkeypatch.setattr(sys.modules[__name__], "Own", Own, raising=False)
    theirs = EntryPoint("echo", f"{__name__}:Own", GROUP)
    ours = EntryPoint("echo", "tunefleet.executors.data_and_echo:EchoExecutor", GROUP)
    for points in ([theirs, ours], [ours, theirs]):
        assert isinstance(installed(points).find("echo"), Own)
    lost = EntryPoint("echo", "nowhere.to.be_found:Executor", GROUP)
    monkeypatch.setattr(sys.modules[__name__], "Other", type("Other", (Own,), {}), raising=False)
    other = EntryPoint("echo", f"{__name__}:Other", GROUP)
    for points, why in (([ours, theirs, other], f"{__name__}:Other and {__name__}:Own"), ([lost, ours], "nowhere")):
        registry = installed(points)
        (offer,) = registry.offers()
        assert registry.find("echo") is None, "which of them was meant is not guessed"
        assert why in (offer.reason or "")


def test_echo_gives_back_its_spec_and_counts_its_items() -> None:
    echo = installed().find("echo")
    assert isinstance(echo, LightExecutor)
    spec = {"taskType": "echo", "data": {"type": "list", "items": ["a", "b"]}}
    items = [{"index": 0, "output": "a"}, {"index": 1, "output": "b"}]
    assert echo.run(_offer("echo", spec)) == {"ok": True, "echo": spec, "items": items, "count": 2}
    given = [1, 2.5, True, None, {"a": [1]}]
    found = echo.run(_offer("echo", {"taskType": "echo", "data": {"items": given}}))["items"]
    assert [(each["output"], type(each["output"])) for each in found] == [(each, type(each)) for each in given]
    assert echo.run(_offer("echo", {"taskType": "echo"})) == {"ok": True, "echo": {"taskType": "echo"}}


@pytest.mark.parametrize(
    ("kind", "output"), [("sft", ("final_model", "model")), ("lora_sft", ("final_lora", "adapter"))]
)
def test_a_training_runs_the_program_and_leaves_one_output(
    folder: JobFolder, kind: str, output: tuple[str, str]
) -> None:
    executor = installed().find(kind)
    assert isinstance(executor, JobExecutor)
    spec = {
        "taskType": kind,
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"path": "rows.jsonl"},
        "resources": {"hardware": {"gpu": {"count": 2}}},
    }
    inputs, gpus = {"data.path": "/in/rows.jsonl"}, ("GPU-0", "GPU-1")
    job = executor.job(_offer(kind, spec), launch="launch-1", inputs=inputs, gpus=gpus)
    assert (job.job_id, job.attempt, job.kind, job.launch) == ("task-1", 2, kind, "launch-1")
    assert job.processes == 2
    assert job.inputs == {"data.path": "/in/rows.jsonl"}
    assert job.program == "tunefleet.workloads.training:main"
    assert executor.outputs(folder) == []
    (folder.root / output[0]).mkdir()
    assert [(o.name, o.kind, o.path.name) for o in executor.outputs(folder)] == [(*output, output[0])]


def test_missing_training_libraries_are_a_reason_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "find_spec", lambda name: None if name == "trl" else object())
    reason = sft.SftExecutor().unavailable_reason()
    assert reason is not None
    assert "trl" in reason
    assert "[train]" in reason


@pytest.mark.parametrize("content", [None, "{torn", "[1]"])
def test_a_result_that_cannot_be_read_is_an_error_that_names_the_file(folder: JobFolder, content: str | None) -> None:
    if content is not None:
        folder.responses_json.write_text(content)
    with pytest.raises(ResultError, match=r"responses\.json"):
        sft.SftExecutor().result(folder)


def test_a_result_is_what_the_program_wrote(folder: JobFolder) -> None:
    folder.responses_json.write_text(json.dumps({"training_successful": True}))
    assert sft.SftExecutor().result(folder) == {"training_successful": True}
