"""Chats: a model that a real worker holds ready, talked with over the server and from the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import ConflictError, InputError
from tunefleet.schemas.chat import ChatMessage, ChatPiece, ChatRequest, ChatView

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "workflows" / "chat.yaml"
MODEL = "builtin:gsm8k-llama-2m"
PATIENCE_S = 240.0
TUNED = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": MODEL}},
    "data": {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer", "max_samples": 16},
    "lora": {"r": 8, "target_modules": "all-linear"},
    # So that nobody could take its answers for those of the base.
    "training": {"max_steps": 6, "learning_rate": 3e-2, "batch_size": 2, "save_strategy": "no", "max_seq_length": 64},
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    environment = {
        "ENABLE_ELASTIC_SCALING": "false",
        "HF_HUB_OFFLINE": "1",
        "LOG_FILE": "",
        "OMP_NUM_THREADS": "1",
        "TUNEFLEET_ENGINE_IDLE_S": "20",
    }
    data = tmp_path_factory.mktemp("chat")
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as made:
        yield made


def submit(client: Client, spec: dict[str, Any]) -> str:
    text = yaml.safe_dump({"apiVersion": "tunefleet/v1", "metadata": {"name": "talk"}, "spec": spec})
    return client.submit(text).task_id


def question(text: str, **drawn: Any) -> ChatRequest:
    return ChatRequest(messages=(ChatMessage(role="user", content=text),), **drawn)


def said(client: Client, task_id: str, request: ChatRequest) -> tuple[str, ChatPiece]:
    """Ask, and return the whole answer and its last piece."""
    pieces = list(client.tasks.chat(task_id, request))
    return "".join(piece.text for piece in pieces), pieces[-1]


def until(client: Client, task_id: str, good: Callable[[ChatView], bool]) -> ChatView:
    deadline = time.monotonic() + PATIENCE_S
    while not good(view := client.tasks.get_chat(task_id)):
        assert time.monotonic() < deadline, view
        time.sleep(0.05)
    return view


def test_what_was_trained_answers_beside_its_base(fleet: LocalFleet, client: Client) -> None:
    trained = submit(client, TUNED)
    assert client.tasks.wait(trained, timeout_s=PATIENCE_S).status == "completed"
    command = [sys.executable, "-c", "from tunefleet.cli.main import main; main()", "chat", trained, "--base", "--json"]
    drawn = ["-m", "A train has 12 cars.", "--temperature", "0", "--max-tokens", "16"]
    environment = {**os.environ, "TUNEFLEET_URL": fleet.url, "TUNEFLEET_KEY": fleet.key}
    ran = subprocess.run(
        [*command, *drawn], env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ran.returncode == 0, ran.stderr
    base, tuned = json.loads(ran.stdout)["answers"]
    assert (base["model"], tuned["model"]) == ("base", "tuned")
    assert base["text"] != tuned["text"]
    assert base["usage"]["prompt_tokens"] == tuned["usage"]["prompt_tokens"] > 5
    # The session was begun for the conversation, and ends with it.
    (session,) = client.tasks.list(kind="chat").items
    ended = client.tasks.wait(session.id, timeout_s=PATIENCE_S)
    assert ended.status == "completed"
    assert ended.result is not None
    result = ended.result["result"]
    assert (result["turns"], result["ended"], result["models"][:2]) == (2, "asked", ["base", "tuned"])
    assert result["usage"]["completion_tokens"] == sum(each["usage"]["completion_tokens"] for each in (base, tuned))


def test_a_session_outlives_its_process_and_who_leaves_takes_nothing_along(
    fleet: LocalFleet, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> None:
    document = yaml.safe_load(EXAMPLE.read_text())
    document["spec"]["retry"] = {"backoff_s": 0}
    task_id = client.submit(yaml.safe_dump(document)).task_id
    # A turn that comes before the model is there waits for it.
    greedy = {"temperature": 0, "max_tokens": 12}
    first, last = said(client, task_id, question("A train has 12 cars.", **greedy))
    assert last.finish == "length"
    assert last.usage is not None
    assert last.usage.completion_tokens == 12

    # Somebody leaves in the middle: the answer ends on the worker, and the next one has its turn.
    pieces = client.tasks.chat(task_id, question("Tell me all.", max_tokens=480, temperature=1.0, seed=1))
    next(pieces)
    pieces.close()  # type: ignore[attr-defined]
    until(client, task_id, lambda view: view.waiting == 0)

    # The job is killed in the middle of an answer: who asked is told, and another launch goes on.
    (found,) = [each for each in Path(fleet.data).rglob("process.json") if each.parent.name == task_id]
    process = json.loads(found.read_bytes())
    pieces = client.tasks.chat(task_id, question("Tell me all.", max_tokens=480, temperature=1.0, seed=1))
    next(pieces)
    os.kill(process["pid"], signal.SIGKILL)
    with pytest.raises(ConflictError, match="died during the answer"):
        list(pieces)
    again, _ = said(client, task_id, question("A train has 12 cars.", **greedy))
    assert again == first
    assert json.loads(found.read_bytes())["pid"] != process["pid"]

    # Clients of OpenAI's protocol, and answers that obey a schema.
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    body = {
        "messages": [{"role": "system", "content": "Short."}, {"role": "user", "content": "One or two?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "max_tokens": 30,
    }
    url = f"{fleet.url}/api/v1/tasks/{task_id}/v1/chat/completions"
    whole = httpx.post(url, json=body, headers={"Authorization": f"Bearer {fleet.key}"}, timeout=PATIENCE_S).json()
    choice = whole["choices"][0]
    assert json.loads(choice["message"]["content"])["n"] in {1, 2}
    assert (whole["object"], choice["finish_reason"]) == ("chat.completion", "stop")

    with pytest.raises(InputError, match="no model 'tuned'"):
        said(client, task_id, question("x", model="tuned"))
    client.tasks.end_chat(task_id)
    ended = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert ended.status == "completed"
    assert ended.result is not None
    # What was counted survives the launch; turns that nobody waited for do not count.
    assert ended.result["result"]["turns"] == 3
    with pytest.raises(ConflictError, match="has ended"):
        said(client, task_id, question("Still there?"))


def test_a_chat_that_cannot_be_says_why_and_nobody_waits_for_it(client: Client, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    spec = {"taskType": "chat", "model": {"source": {"identifier": str(tmp_path)}}}
    task_id = submit(client, spec)
    heard: list[str] = []

    def ask() -> None:
        try:
            said(client, task_id, question("Hello?"))
        except ConflictError as error:
            heard.append(str(error))

    asking = threading.Thread(target=ask)
    asking.start()
    ended = client.tasks.wait(task_id, timeout_s=PATIENCE_S)
    assert (ended.status, ended.reason) == ("failed", "bad_input")
    assert "cannot be loaded" in str(ended.error)
    asking.join(PATIENCE_S)
    assert "has ended (failed" in heard[0]
    # One that nobody talks with ends by itself.
    idle = submit(client, {"taskType": "chat", "model": {"source": {"identifier": MODEL}}, "idle_s": 1})
    quiet = client.tasks.wait(idle, timeout_s=PATIENCE_S)
    assert quiet.result is not None
    assert (quiet.status, quiet.result["result"]["ended"]) == ("completed", "idle")
