"""`trainer: module:function` through a real worker: a training that somebody else's code does, killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.libraries import required
from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.schemas.api import TaskDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

PATIENCE_S = 300.0
STEPS = 16
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
# Somebody's package: it knows the seam, and trains with a script of its own.
PLUGIN = '''
from tunefleet.errors import InputError
from tunefleet.workloads.external_trainers import Plan, Request

SCRIPT = """
import json, os, sys, time
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, DataCollatorForSeq2Seq, AutoTokenizer, Trainer, TrainerCallback, \\
    TrainingArguments

class Slow(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        with open("steps.txt", "a") as file:
            file.write(f"{state.global_step}\\\\n")
        if not os.path.exists(os.environ["FAST"]):
            time.sleep(0.3)

wanted = json.load(open("wanted.json"))
torch.manual_seed(0)
tokenizer = AutoTokenizer.from_pretrained(wanted["model"])
model = AutoModelForCausalLM.from_pretrained(wanted["model"])
model = get_peft_model(model, LoraConfig(r=wanted["r"], target_modules=["q_proj"], task_type="CAUSAL_LM"))
rows = [json.loads(line) for line in open(wanted["train"])]
args = TrainingArguments("output", max_steps=wanted["steps"], save_steps=4, logging_steps=2, report_to=[],
                         use_cpu=True, per_device_train_batch_size=2, learning_rate=1e-2)
trainer = Trainer(model=model, args=args, train_dataset=rows, callbacks=[Slow()],
                  data_collator=DataCollatorForSeq2Seq(tokenizer, padding=True))
trainer.train()
trainer.save_model("output")
"""


def plan(request: Request) -> Plan:
    import json, os

    if request.spec.training.packing:
        raise InputError("The sample trainer packs no rows.")
    wanted = {"model": request.model, "r": request.lora.r, "train": str(request.train),
              "steps": request.spec.training.max_steps}
    files = {"train.py": SCRIPT, "wanted.json": json.dumps(wanted)}
    return Plan(("python", "train.py"), files, {"FAST": os.environ["FAST"]})
'''


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that, once there, lets the steps go at full speed."""
    return tmp_path_factory.mktemp("speed") / "fast"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int], fast: Path) -> Iterator[LocalFleet]:
    """A server and a worker that runs code, and finds the plugin."""
    required("peft")
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "sample_trainer.py").write_text(PLUGIN)
    environment = {
        "TUNEFLEET_ALLOW_CODE": "true",
        "TUNEFLEET_WARM_START": "false",
        "ENABLE_ELASTIC_SCALING": "false",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(plugins), str(EXAMPLES / "trainers")]),
        "FAST": str(fast),
        "LOG_FILE": "",
    }
    data = tmp_path_factory.mktemp("trainers")
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as made:
        yield made


def document(trainer: str = "sample_trainer:plan", **training: Any) -> str:
    spec = {
        "taskType": "lora_sft",
        "trainer": trainer,
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}},
        "data": {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer",
                 "max_samples": 40},
        "lora": {"r": 4, "alpha": 8, "target_modules": ["q_proj"]},
        "training": {"max_steps": STEPS, "max_seq_length": 96, **training},
        "retry": {"max_attempts": 3, "backoff_s": 0},
    }  # fmt: skip
    return json.dumps({"apiVersion": "tunefleet/v1", "metadata": {"name": "theirs"}, "spec": spec})


def until(what: Callable[[], Any], why: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := what()):
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)
    return found


def wait(client: Client, task_id: str) -> TaskDetail:
    return client.tasks.wait(task_id, timeout_s=PATIENCE_S)


def test_a_function_trains_survives_a_kill_and_its_adapter_is_delivered(
    client: Client, fleet: LocalFleet, fast: Path, tmp_path: Path
) -> None:
    task_id = client.submit(document()).task_id
    folder = fleet.results_dir() / task_id
    whole = lambda: list((folder / "work" / "output").glob("checkpoint-*/manifest.json"))  # noqa: E731
    until(whole, lambda: client.tasks.get(task_id))
    os.kill(json.loads((folder / "process.json").read_bytes())["pid"], signal.SIGKILL)
    before = (folder / "work" / "rows" / "rows.json").stat().st_mtime_ns
    fast.touch()
    task = wait(client, task_id)
    assert (task.status, task.error) == ("completed", None)
    assert task.result is not None
    result = task.result["result"]
    assert (result["steps"], result["trainer"]["name"]) == (STEPS, "sample_trainer:plan")
    assert result["trainer"]["command"] == ["python", "train.py"]
    assert result["losses"]["train_last"] < 8
    assert (folder / "work" / "rows" / "rows.json").stat().st_mtime_ns == before, "rows are made once"
    steps = [int(line) for line in (folder / "work" / "steps.txt").read_text().split()]
    assert steps[-1] == STEPS
    assert steps.count(1) == 1, "it went on from its checkpoint"

    adapter = client.tasks.fetch_output(task_id, "final_lora", tmp_path / "adapter")
    names = {path.name for path in adapter.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer_config.json"} <= names
    points = client.tasks.metrics(task_id).points
    assert [point.step for point in points if "loss" in point.values] == list(range(2, STEPS + 1, 2))
    # The rows are the very tokens of a training of ours: only the answers count.
    first = json.loads((folder / "work" / "rows" / "train.jsonl").read_text().splitlines()[0])
    counted = [label for label in first["labels"] if label != -100]
    assert 0 < len(counted) < len(first["labels"]) == len(first["input_ids"]) == len(first["attention_mask"]) <= 96
    assert not [each for each in psutil.Process().children(recursive=True) if "train.py" in each.cmdline()]


def test_what_a_trainer_refuses_is_told(client: Client, fast: Path) -> None:
    task = wait(client, client.submit(document(packing=True)).task_id)
    assert (task.status, len(task.attempt_list)) == ("failed", 1)
    assert "The sample trainer packs no rows." in str(task.error)


def test_the_example_of_a_trainer_of_ones_own_trains(client: Client) -> None:
    task = wait(client, client.submit(EXAMPLES / "workflows" / "trainer.yaml").task_id)
    assert (task.status, task.error) == ("completed", None)
    assert task.result is not None
    assert task.result["result"]["steps"] == 8
    assert task.result["result"]["trainer"]["command"][:3] == ["python", "-m", "my_trainers.run"]
