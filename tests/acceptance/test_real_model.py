"""A model that people use, SmolLM2-135M-Instruct: trained, paused, preferred, federated, merged, exported and asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.story import Story, until
from tests.libraries import required
from tests.real_model import LLAMA_CPP, PACKAGE, chats, is_wanted, llama_cpp_answers, smollm2
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.cli.main import run
from tunefleet.cli.tasks.results import executor_result
from tunefleet.client import Client
from tunefleet.lifecycle.task import TaskStatus
from tunefleet.schemas.chat import ChatMessage, ChatRequest

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(1200)]
LORA = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": "all-linear"}


TRAINING = {"batch_size": 4, "max_seq_length": 128, "learning_rate": 5e-4, "logging_steps": 1}
QUIET = {"HF_HUB_OFFLINE": "1", "LOG_FILE": "", "TUNEFLEET_LLAMA_CPP": str(LLAMA_CPP), "PYTHONPATH": str(PACKAGE)}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    """A server and a worker that has all processors."""
    required("trl")
    with LocalFleet(tmp_path_factory.mktemp("fleet"), port=free_port(), environment=QUIET, save_client=False) as made:
        made.await_workers(300)
        yield made


def document(**spec: Any) -> str:
    spec = {"model": {"source": {"identifier": str(smollm2())}}, **spec}
    return json.dumps({"apiVersion": "tunefleet/v1", "kind": "Task", "metadata": {"name": "real"}, "spec": spec})


def ran(fleet: LocalFleet, **spec: Any) -> Any:
    """Run a task; returns it with its result."""
    with Client(fleet.url, fleet.key) as client:
        ended = client.submit(document(**spec)).wait()
        assert ended.status == TaskStatus.COMPLETED, ended.error
        return ended


def written(folder: Path, **files: Iterable[Any]) -> dict[str, str]:
    """Write rows as JSONL; returns the path of each file."""
    for name, rows in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {name: str(folder / f"{name}.jsonl") for name in files}


@pytest.fixture(scope="module")
def trained(fleet: LocalFleet, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Forty steps on two hundred chats."""
    rows = written(tmp_path_factory.mktemp("rows"), train=chats(200), test=chats(20, first=1000))
    return ran(
        fleet,
        taskType="lora_sft",
        data={"path": rows["train"], "eval": {"path": rows["test"]}},
        lora=LORA,
        training={**TRAINING, "max_steps": 40},
        evaluate={"answers": 20, "max_new_tokens": 48, "exact_match": {"rows": 20}},
    )


def test_it_answers_in_json_after_forty_steps_and_never_before(trained: Any) -> None:
    found = executor_result(trained)["held_out"]
    before = sum(is_wanted(answer["before"]) for answer in found["answers"])
    after = sum(is_wanted(answer["after"]) for answer in found["answers"])
    assert before == 0
    assert after >= 18
    assert found["loss_after"] < found["loss_before"] / 2
    assert found["exact_match"]["before"] == 0
    assert found["exact_match"]["after"] >= 0.7
    assert executor_result(trained)["data"]["notes"] == []


def test_base_adapter_merged_model_and_llama_cpp_answer_alike(trained: Any, fleet: LocalFleet, tmp_path: Path) -> None:
    with Client(fleet.url, fleet.key) as client:
        adapter = client.tasks.fetch_output(trained.id, "adapter", tmp_path / "adapter")
    model = {"source": {"identifier": str(smollm2())}, "adapters": [{"path": str(adapter)}]}
    merge = {"into": "base", "dtype": "float32", "gguf": {"type": "f16"}}
    merged = ran(fleet, taskType="merge", model=model, merge=merge)
    asked = [row["messages"][0]["content"] for row in chats(6, first=2000)]
    drawn = {"max_tokens": 40, "temperature": 0}
    items = {"type": "list", "items": asked}
    apart = executor_result(ran(fleet, taskType="inference", model=model, data=items, inference=drawn))["items"]
    load = {"load": {"taskId": merged.id}}
    whole = executor_result(ran(fleet, taskType="inference", checkpoint=load, data=items, inference=drawn))["items"]
    said = [item["output"] for item in apart]
    assert [item["output"] for item in whole] == said
    assert sum(map(is_wanted, said)) >= 5
    file = Path(executor_result(merged)["gguf"]["path"])
    prompts = [item["metadata"]["rendered_prompt"] for item in whole]
    assert llama_cpp_answers(file, prompts, 40) == said


def test_an_evaluation_tells_the_adapter_from_the_base(trained: Any, fleet: LocalFleet, tmp_path: Path) -> None:
    rows = written(tmp_path, test=chats(20, first=3000))
    match = {"type": "exact_match", "match": {"extract": "text"}, "generation": {"max_tokens": 40}}
    measured = [{"type": "loss", "data": {"path": rows["test"]}}, {**match, "data": {"path": rows["test"]}}]
    base = executor_result(ran(fleet, taskType="evaluate", evaluations=measured))["metrics"]
    load = {"load": {"taskId": trained.id}}
    tuned = executor_result(ran(fleet, taskType="evaluate", evaluations=measured, checkpoint=load))["metrics"]
    assert tuned["loss"]["high"] < base["loss"]["low"]
    assert base["accuracy"]["value"] == 0
    assert tuned["accuracy"]["value"] >= 0.7


def test_one_chats_with_the_adapter(trained: Any, fleet: LocalFleet) -> None:
    model = {"source": {"identifier": str(smollm2())}, "adapters": [{"taskId": trained.id}]}
    question = ChatMessage(role="user", content=chats(1, first=4000)[0]["messages"][0]["content"])
    with Client(fleet.url, fleet.key, patience_s=60) as client:
        task_id = client.submit(document(taskType="chat", model=model)).task_id
        said = client.tasks.chat(task_id, ChatRequest(messages=(question,), max_tokens=40, temperature=0))
        assert is_wanted("".join(piece.text for piece in said))
        client.tasks.end_chat(task_id)
        assert client.tasks.wait(task_id, timeout_s=120).status == "completed"


def test_a_paused_training_ends_with_the_weights_of_one_that_never_paused(fleet: LocalFleet, tmp_path: Path) -> None:
    rows = written(tmp_path, train=chats(40))
    spec: dict[str, Any] = {
        "taskType": "lora_sft",
        "data": {"path": rows["train"]},
        "lora": {**LORA, "dropout": 0.1},
        "training": {**TRAINING, "max_steps": 8},
    }
    straight = Story(fleet, ran(fleet, **spec).id, 8)
    with Client(fleet.url, fleet.key) as client:
        paused = Story(fleet, client.submit(document(**spec)).task_id, 8)
        until(lambda: paused.step() >= 3, "the third step", within_s=300)
        client.tasks.pause_and_wait(paused.task_id, timeout_s=120)
        assert 3 <= paused.step() < 8
        client.tasks.resume(paused.task_id)
        assert client.tasks.wait(paused.task_id, timeout_s=300).status == "completed"
    weights = [story.folder.root / "final_lora" / "adapter_model.safetensors" for story in (straight, paused)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert len(paused.launches()) == 2


def test_it_learns_to_prefer_an_answer(fleet: LocalFleet, tmp_path: Path) -> None:
    def pairs(count: int, first: int) -> Iterator[dict[str, Any]]:
        for row in chats(count, first):
            question, answer = row["messages"]
            worse = {"role": "assistant", "content": f"Sure! You said: {question['content']}"}
            yield {"prompt": [question], "chosen": [answer], "rejected": [worse]}

    rows = written(tmp_path, train=pairs(60, 0), test=pairs(10, 1000))
    ended = ran(
        fleet,
        taskType="dpo",
        data={"path": rows["train"], "eval": {"path": rows["test"]}},
        lora=LORA,
        training={**TRAINING, "max_steps": 12},
    )
    found = executor_result(ended)["held_out"]
    assert found["before"]["margin"] == pytest.approx(0, abs=1e-3)
    assert found["after"]["margin"] > 1
    assert found["after"]["accuracy"] == 1


def test_a_federation_of_two_knows_what_each_of_them_has_learnt(tmp_path: Path, free_port: Callable[[], int]) -> None:
    def spoken(count: int, first: int) -> list[dict[str, Any]]:
        """Chats of another kind, which only the second worker has."""
        found = []
        for at in range(first, first + count):
            question = f"Count from {at % 50} on."
            answer = " then ".join(str(at % 50 + more) for more in range(6))
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            found.append({"messages": messages})
        return found

    own = [chats(64), spoken(64, 0)]
    both = [{**row, "who": who} for who, rows in zip("ab", own, strict=True) for row in rows]
    rows = written(tmp_path, a=own[0], b=own[1], both=both, test=[*chats(10, 1000), *spoken(10, 37)])
    spec: dict[str, Any] = {"taskType": "lora_sft", "lora": LORA, "training": {**TRAINING, "max_steps": 16}}
    measured = [{"type": "loss", "data": {"path": rows["test"]}}]
    split = {"by": "column", "column": "who"}
    federation = {"workers": 2, "sync_every_steps": 4, "split": split, "strategy": {"name": "fedavg_exact"}}
    environment = {**QUIET, "OMP_NUM_THREADS": "1"}
    losses = {}
    with LocalFleet(
        tmp_path / "fleet", port=free_port(), workers=2, environment=environment, save_client=False
    ) as fleet:
        for name, more in (("a", {}), ("b", {}), ("both", {"federation": federation})):
            made = ran(fleet, **spec, data={"path": rows[name]}, **more)
            model = {"source": {"identifier": str(smollm2())}, "adapters": [{"taskId": made.id}]}
            found = executor_result(ran(fleet, taskType="evaluate", evaluations=measured, model=model))
            losses[name] = found["metrics"]["loss"]["value"]
    assert losses["both"] < min(losses["a"], losses["b"]), losses


def test_the_demo_takes_it_where_no_hub_answers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = smollm2()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    models = tmp_path / "cache" / "tunefleet" / "models"
    models.mkdir(parents=True)
    (models / "SmolLM2-135M-Instruct").symlink_to(model)
    asked = ["demo", "--model", "HuggingFaceTB/SmolLM2-135M-Instruct", "--out", str(tmp_path / "out")]
    assert run(asked) == 0
    said = capsys.readouterr().out
    found = re.search(r"Exact match 0.0% → ([\d.]+)% on 40 sentences", said)
    assert found is not None, said
    assert float(found[1]) >= 80
    assert "PeftModel.from_pretrained(base" in said
