"""Two trainings become one model through a real worker: the example, a kill in the middle, export and push."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.runtime import envs
from tunefleet.schemas.api import TaskDetail

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(300)]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "workflows" / "merge.yaml"
PATIENCE_S = 240.0


@pytest.fixture(scope="module")
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as made:
        yield made


@pytest.fixture(scope="module")
def tasks(client: Client) -> dict[str, TaskDetail]:
    """The tasks of the example, ended, by name."""
    flow = client.workflows.wait(client.submit(EXAMPLE).workflow.id, timeout_s=PATIENCE_S)
    assert flow.status == "completed", [(task.name, task.error) for task in flow.tasks]
    return {task.name: client.tasks.get(task.id) for task in flow.tasks}


def result(task: TaskDetail) -> dict[str, Any]:
    assert task.result is not None, task.error
    found: dict[str, Any] = task.result["result"]
    return found


def test_the_example_makes_one_model_and_knows_its_parents(client: Client, tasks: dict[str, TaskDetail]) -> None:
    made = {each.task_id: each for each in client.artifacts.iterate() if each.name == "final_lora"}
    combined, model = result(tasks["one-adapter"]), result(tasks["model"])
    trained = [made[tasks[name].id].digest for name in ("first", "second")]
    assert [each["digest"] for each in combined["parents"]["adapters"]] == trained
    assert [each["task_id"] for each in combined["parents"]["adapters"]] == [tasks["first"].id, tasks["second"].id]
    assert combined["error_of_sum"]["overall"] < 1e-5
    assert model["parents"]["adapters"][0]["digest"] == made[tasks["one-adapter"].id].digest
    # The shipped base is in bf16, to which what is added is rounded.
    assert model["verification"]["relative_error"] < 5e-3
    assert model["verification"]["adapter_effect"] > 2 * model["verification"]["relative_error"]
    (delivered,) = [each for each in client.artifacts.iterate(task_id=tasks["model"].id) if each.kind == "model"]
    files = {file.path: file.digest for file in client.artifacts.get(delivered.id).files}
    assert {each["name"]: each["digest"] for each in model["shards"]}.items() <= files.items()
    assert {"tokenizer.json", "chat_template.jinja", "generation_config.json"} <= files.keys()


def _job_folder(fleet: LocalFleet, task_id: str) -> Path | None:
    return next(iter(fleet.data.rglob(f"{task_id}/process.json")), None)


def test_a_merge_whose_process_is_killed_goes_on_with_what_was_whole(
    client: Client, fleet: LocalFleet, tasks: dict[str, TaskDetail]
) -> None:
    spec = {
        "taskType": "merge",
        "model": {"source": {"identifier": "builtin:gsm8k-llama-2m"}, "adapters": [{"taskId": tasks["first"].id}]},
        "retry": {"backoff_s": 0.1},
    }
    document = {"apiVersion": "tunefleet/v1", "kind": "Workflow", "metadata": {"name": "killed"}, "spec": spec}
    task_id = client.submit(json.dumps(document)).task_id
    deadline = time.monotonic() + PATIENCE_S
    while True:
        process = _job_folder(fleet, task_id)
        if process is not None and list((process.parent / ".merge").glob("*.json")):
            os.kill(json.loads(process.read_bytes())["pid"], signal.SIGKILL)
            break
        assert time.monotonic() < deadline, client.tasks.get(task_id)
        time.sleep(0.002)
    ended = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert ended.status == "completed", ended.error
    assert ended.attempts == 2
    made = result(client.tasks.get(task_id))
    assert [each["kept"] for each in made["shards"]] == [True]
    assert made["verification"]["passed"] is True


def _tunefleet(
    fleet: LocalFleet, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str, str]:
    from tunefleet.cli.main import run

    monkeypatch.setenv("TUNEFLEET_URL", fleet.url)
    monkeypatch.setenv("TUNEFLEET_KEY", fleet.key)
    capsys.readouterr()
    code = run(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


def test_export_fetches_merges_once_and_never_overwrites(
    client: Client,
    fleet: LocalFleet,
    tasks: dict[str, TaskDetail],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, plain, whole = tasks["first"].id, tmp_path / "plain", tmp_path / "whole"
    code, said, _ = _tunefleet(fleet, capsys, monkeypatch, "export", task, "--out", str(plain), "--json")
    assert (code, json.loads(said)["kind"]) == (0, "adapter")
    assert (plain / "adapter_config.json").is_file()
    code, _, wrong = _tunefleet(fleet, capsys, monkeypatch, "export", task, "--out", str(plain))
    assert code == 5
    assert "is not empty" in wrong
    assert "--force" in wrong
    code, said, _ = _tunefleet(fleet, capsys, monkeypatch, "export", task, "--merged", "--out", str(whole), "--json")
    assert code == 0, said
    merge = json.loads(said)["task_id"]
    assert merge != task
    assert (whole / "model.safetensors").is_file()
    assert result(client.tasks.get(merge))["verification"]["relative_error"] < 5e-3
    code, said, _ = _tunefleet(
        fleet, capsys, monkeypatch, "export", task, "--merged", "--out", str(whole), "--force", "--json"
    )
    assert (code, json.loads(said)["task_id"]) == (0, merge), "asked for twice, it is made once"


def test_a_gguf_file_without_a_converter_says_how_to_get_one_before_any_work(
    fleet: LocalFleet,
    tasks: dict[str, TaskDetail],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if os.environ.get("TUNEFLEET_LLAMA_CPP") or envs.reason("gguf") is None:
        pytest.skip("there is a converter")
    code, said, wrong = _tunefleet(
        fleet, capsys, monkeypatch, "export", tasks["first"].id, "--gguf", "--out", str(tmp_path / "out")
    )
    assert code == 5, said
    assert (said + wrong).count("This worker cannot create a GGUF file") == 1
    assert "convert_hf_to_gguf.py" in wrong
    assert "TUNEFLEET_LLAMA_CPP" in wrong
    assert not (tmp_path / "out").exists()


# The Hub's own client says so while it uploads.
@pytest.mark.filterwarnings("ignore:Use .content=:DeprecationWarning")
def test_push_publishes_on_the_hub_with_a_card_and_never_overwrites(
    fleet: LocalFleet,
    tasks: dict[str, TaskDetail],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from huggingface_hub import constants

    from tests.fakes.hub import serving

    # Its fast way to send files speaks to a service of its own, which the double lacks.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    task, to = tasks["model"].id, "hf://acme/tuned"
    with serving("writer") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
        code, _, wrong = _tunefleet(fleet, capsys, monkeypatch, "push", task, to)
        assert code == 6
        assert "HF_TOKEN" in wrong
        monkeypatch.setenv("HF_TOKEN", "a-reader")
        code, _, wrong = _tunefleet(fleet, capsys, monkeypatch, "push", task, to)
        assert code == 6
        assert "settings/tokens" in wrong
        monkeypatch.setenv("HF_TOKEN", "writer")
        words = ("push", task, to, "--private", "--message", "First round", "--revision", "v1", "--json")
        code, said, wrong = _tunefleet(fleet, capsys, monkeypatch, *words)
        assert code == 0, wrong
        assert json.loads(said)["card_written"] is True
        repo = hub.repos["acme/tuned"]
        assert (repo.private, repo.messages) == (True, ["First round"])
        published = repo.branches["v1"]
        assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= published.keys()
        card = published["README.md"].decode()
        assert "library_name: transformers" in card
        assert all(tasks[name].id in card for name in ("model", "one-adapter", "first", "second"))
        assert "train last" in card, "what was measured of the trainings"
        code, _, wrong = _tunefleet(fleet, capsys, monkeypatch, *words)
        assert code == 5
        assert "--force" in wrong
        assert _tunefleet(fleet, capsys, monkeypatch, *words, "--force")[0] == 0


def test_push_into_a_bucket_and_into_a_folder(
    fleet: LocalFleet,
    tasks: dict[str, TaskDetail],
    tmp_path: Path,
    s3_server: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.integration.s3.gateway import BUCKET

    for name, value in s3_server.environment.items():
        if name != "TUNEFLEET_ARTIFACTS":
            monkeypatch.setenv(name, value)
    task, to = tasks["first"].id, f"s3://{BUCKET}/published/adapter"
    code, said, wrong = _tunefleet(fleet, capsys, monkeypatch, "push", task, to, "--json")
    assert code == 0, wrong
    there = s3_server.client.list_objects_v2(Bucket=BUCKET, Prefix="published/adapter/")["Contents"]
    names = {entry["Key"].removeprefix("published/adapter/") for entry in there}
    assert names == set(json.loads(said)["files"])
    assert {"adapter_model.safetensors", "README.md"} <= names
    assert _tunefleet(fleet, capsys, monkeypatch, "push", task, to)[0] == 5
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    code, _, wrong = _tunefleet(fleet, capsys, monkeypatch, "push", task, to, "--force")
    assert code == 6
    assert "AWS_SECRET_ACCESS_KEY" in wrong
    folder = tmp_path / "published"
    assert _tunefleet(fleet, capsys, monkeypatch, "push", task, str(folder))[0] == 0
    assert {path.name for path in folder.iterdir()} == names


def test_a_gguf_file_is_made_in_its_environment_and_exported_with_what_ollama_needs(
    fleet: LocalFleet,
    client: Client,
    tasks: dict[str, TaskDetail],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: Callable[[str], None],
) -> None:
    if why := envs.reason("gguf"):
        missing(why)
    out, task = tmp_path / "out", tasks["first"].id
    asked = ("export", task, "--gguf", "--type", "q4_k_m", "--out", str(out))
    code, said, wrong = _tunefleet(fleet, capsys, monkeypatch, *asked)
    assert code == 0, wrong
    text = " ".join(said.split())
    assert "Verified: the merged model's logits match" in text
    assert re.search(r"The GGUF file gives the model's answer to \d of 3 prompts \(\d+ of \d+ tokens", text)
    assert "ollama create NAME -f" in text
    assert (out / "model-q4_k_m.gguf").read_bytes()[:4] == b"GGUF"
    assert "FROM ./model-q4_k_m.gguf" in (out / "Modelfile").read_text()
    code, said, wrong = _tunefleet(fleet, capsys, monkeypatch, *asked, "--force", "--json")
    assert code == 0, wrong
    shown = json.loads(said)
    assert shown["gguf_check"] == result(client.tasks.get(shown["task_id"]))["gguf"]["check"]
    pushed = tmp_path / "pushed"
    code, said, wrong = _tunefleet(
        fleet, capsys, monkeypatch, "push", task, str(pushed), "--gguf", "--type", "q4_k_m", "--json"
    )
    assert code == 0, wrong
    assert json.loads(said)["files"] == ["Modelfile", "README.md", "model-q4_k_m.gguf"]
