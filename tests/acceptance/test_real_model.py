"""A model that people use, SmolLM2-135M-Instruct, learns something within minutes, and its adapter is used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.libraries import required
from tests.real_model import chats, is_wanted, smollm2
from tunefleet.cli.fleet import LocalFleet
from tunefleet.cli.results import executor_result
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskStatus

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(1200)]
LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server and a worker that has all processors."""
    required("trl")
    quiet = {"HF_HUB_OFFLINE": "1", "LOG_FILE": ""}
    with LocalFleet(tmp_path_factory.mktemp("fleet"), port=free_port(), environment=quiet, save_client=False) as made:
        made.await_workers(300)
        yield made


def ran(fleet: LocalFleet, **spec: Any) -> Any:
    """Run a task; returns it with its result."""
    with Client(fleet.url, fleet.key) as client:
        document = {"apiVersion": "tunefleet/v1", "kind": "Task", "metadata": {"name": "real"}, "spec": spec}
        run = client.submit(json.dumps(document))
        ended = run.wait()
        assert ended.status == TaskStatus.COMPLETED, ended.error
        return ended


@pytest.fixture(scope="module")
def trained(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Forty steps on two hundred chats."""
    folder = tmp_path_factory.mktemp("rows")
    for name, rows in (("train", chats(200)), ("test", chats(20, first=1000))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ran(
        fleet,
        taskType="lora_sft",
        model={"source": {"identifier": str(smollm2())}},
        data={"path": str(folder / "train.jsonl"), "eval": {"path": str(folder / "test.jsonl")}},
        lora=LORA,
        training={"max_steps": 40, "batch_size": 4, "max_seq_length": 128, "learning_rate": 5e-4},
        evaluate={"answers": 20, "max_new_tokens": 48},
    )


def test_it_answers_in_json_after_forty_steps_and_never_before(trained: Any) -> None:
    found = executor_result(trained)["held_out"]
    before = sum(is_wanted(answer["before"]) for answer in found["answers"])
    after = sum(is_wanted(answer["after"]) for answer in found["answers"])
    assert before == 0
    assert after >= 18
    assert found["loss_after"] < found["loss_before"] / 2
    assert executor_result(trained)["data"]["notes"] == []


def test_the_merged_model_answers_as_base_and_adapter_do(trained: Any, fleet: LocalFleet, tmp_path: Path) -> None:
    with Client(fleet.url, fleet.key) as client:
        adapter = client.tasks.fetch_output(trained.id, "adapter", tmp_path / "adapter")
    model = {"source": {"identifier": str(smollm2())}, "adapters": [{"path": str(adapter)}]}
    merged = ran(fleet, taskType="merge", model=model, merge={"into": "base", "dtype": "float32"})
    asked = [row["messages"][0]["content"] for row in chats(6, first=2000)]
    drawn = {"max_tokens": 40, "temperature": 0}
    items = {"type": "list", "items": asked}
    apart = ran(fleet, taskType="inference", model=model, data=items, inference=drawn)
    whole = ran(
        fleet,
        taskType="inference",
        model={"source": {"identifier": str(smollm2())}},
        checkpoint={"load": {"taskId": merged.id}},
        data=items,
        inference=drawn,
    )
    said = [[item["output"] for item in executor_result(each)["items"]] for each in (apart, whole)]
    assert said[0] == said[1]
    assert sum(map(is_wanted, said[0])) >= 5
