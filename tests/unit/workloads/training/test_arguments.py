"""What trainers are told of a spec."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tunefleet.spec import ModelTrainingSpec, load_task_spec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global arguments, hardware
    pytest.importorskip("torch")
    from tunefleet.workloads.training import arguments
    from tunefleet.workloads.training.model import hardware


@pytest.mark.parametrize(
    ("kind", "training", "named"),
    [
        ("lora_sft", {"project": "mine", "group": "rates", "report_to": ["wandb"]}, "mine"),
        ("dpo", {"project": "mine", "report_to": ["mlflow", "tensorboard"]}, "mine"),
        ("ppo", {"project": "mine", "log_with": "trackio"}, "mine"),
        ("ppo", {"tracker_project_name": "mine", "log_with": "wandb"}, "mine"),
        ("lora_sft", {"report_to": ["wandb"]}, None),
    ],
)
def test_the_project_reaches_every_tracker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, training: dict[str, Any], named: str | None
) -> None:
    for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME", "WANDB_RUN_GROUP", "MLFLOW_TAGS"):
        monkeypatch.setenv(name, "of the machine")
    monkeypatch.setattr(arguments.importlib.util, "find_spec", lambda _: object())  # as if all were installed
    data = {"prompts": ["a"]} if kind != "dpo" else {"preferences": [{"prompt": "a", "chosen": "b", "rejected": "c"}]}
    reward = {"reward_model": {"identifier": "r"}} if kind == "ppo" else {}
    spec = load_task_spec(
        {"taskType": kind, "model": {"source": {"identifier": "m"}}, "data": data, "training": training, **reward}
    )
    assert isinstance(spec, ModelTrainingSpec)
    machine = hardware.Hardware("cpu")
    setting = arguments.ArgumentsContext(
        machine, hardware.Kernels("float32", "sdpa", liger=False, varlen=False), tmp_path, "run"
    )
    told = arguments.common_arguments(spec, setting)
    assert told["project"] == (named or "tunefleet")
    assert told["report_to"] == [name for name in spec.training.trackers if name != "tensorboard"]
    of_environment = named or "of the machine"
    assert {os.environ[name] for name in ("WANDB_PROJECT", "MLFLOW_EXPERIMENT_NAME")} == {of_environment}
    groups = os.environ["WANDB_RUN_GROUP"], os.environ["MLFLOW_TAGS"]
    assert groups == (("rates", '{"group": "rates"}') if "group" in training else ("of the machine", "of the machine"))
