"""What of a spec travels with the submit, and what its worker fetches."""

from __future__ import annotations

from typing import Any

from tests.unit.spec.kinds.whole_documents import whole
from tunefleet.spec import Fetch, LocalPath, fetches, load_task_spec, local_paths


def of(kind: str, **blocks: Any) -> list[Fetch]:
    return fetches(load_task_spec({**whole(kind), **blocks}))


def test_files_that_travel() -> None:
    training = {"deepspeed": "./zero.json", "resume_from_path": "./weights"}
    spec = {
        "taskType": "sft",
        "model": {"source": {"identifier": "m"}},
        "data": {"prompts": ["a"]},
        "training": training,
    }
    assert local_paths(load_task_spec(spec))[1:] == [
        LocalPath("training.deepspeed", "./zero.json", "file", required=True),
        LocalPath("training.resume_from_path", "./weights", "model", required=True),
    ]
    found = {path.pointer: path for path in local_paths(load_task_spec(whole("inference")))}
    assert set(found) == {"model.source.identifier", "model.adapters.0.path", "model.adapters.1.path", "data.url"}
    assert found["model.adapters.1.path"].elsewhere, "it may lie on the worker"
    assert "reward_model.identifier" in {path.pointer for path in local_paths(load_task_spec(whole("ppo")))}


def test_files_that_may_lie_elsewhere_need_not_be_here() -> None:
    for load in ({"path": "./a", "taskId": "t"}, {"path": "./a", "type": "http", "url": "https://x"}):
        (path,) = [each for each in local_paths({"checkpoint": {"load": load}})]
        assert (path.required, path.elsewhere) == (False, True)
    (path,) = local_paths({"data": {"jsonl": {"path": "a.jsonl", "url": "https://x"}}})
    assert (path.required, path.elsewhere) == (False, True)
    (path,) = local_paths({"checkpoint": {"load": {"path": "./a"}}})
    assert (path.required, path.elsewhere) == (True, False)


def test_what_does_not_travel() -> None:
    for value in ("https://x/a.csv", "builtin:gsm8k", "${stage.result.path}"):
        assert local_paths({"data": {"path": value}}) == []
    for value in ('{"zero_optimization": {"stage": 2}}', {"zero_optimization": {"stage": 2}}):
        assert local_paths({"training": {"deepspeed": value}}) == []


def test_rows_that_the_worker_fetches() -> None:
    (rows,) = [each for each in of("lora_sft") if each.pointer.startswith("data")]
    assert rows == Fetch("data.jsonl.url", "https://x/a.jsonl", headers={"A": "b"}, timeout_s=5)
    data = {"path": "https://x/a.csv", "eval": {"path": "https://x/b.csv"}}
    assert [each.pointer for each in of("dpo", data=data) if each.pointer.startswith("data")] == [
        "data.path",
        "data.eval.path",
    ]


def test_weights_that_the_worker_fetches() -> None:
    def weights(**load: Any) -> list[Fetch]:
        return [each for each in of("sft", checkpoint={"load": load}) if each.pointer == "checkpoint.load"]

    asked = {"headers": {"A": "b"}, "timeoutSec": 5}
    assert weights(type="http", url="https://x/a.zip", **asked) == [
        Fetch("checkpoint.load", "https://x/a.zip", headers={"A": "b"}, timeout_s=5)
    ]
    assert weights(task_id="task-1", filename="a.tar.gz", base_url="http://h") == [
        Fetch("checkpoint.load", None, "task-1", "a.tar.gz", "http://h")
    ]
    assert weights(type="http", taskId="task-1", url="https://x") == [Fetch("checkpoint.load", None, "task-1")]
    assert weights(path="./a") == []


def test_adapters_that_the_worker_fetches() -> None:
    found = [each for each in of("inference") if each.pointer.startswith("model")]
    assert found == [Fetch("model.adapters.0", None, "task-1", headers={"A": "b"})], "a task has precedence"
