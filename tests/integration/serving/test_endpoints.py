"""Endpoints: real servers, workers and models, called with OpenAI's own client."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client
from tunefleet.errors import ForbiddenError
from tunefleet.orchestrator.serving.endpoint_usage import FLUSH_S

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

MODEL = "builtin:gsm8k-llama-2m"
PATIENCE_S = 240.0
# An answer that does not end before its maximum length.
_LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
LONG: dict[str, Any] = {
    "model": "bot",
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 480,
    "response_format": {"type": "json_schema", "json_schema": {"name": "numbers", "schema": _LIST}},
}
TUNED = {
    "taskType": "lora_sft",
    "model": {"source": {"identifier": MODEL}},
    "data": {"path": "builtin:gsm8k", "prompt_column": "question", "response_column": "answer", "max_samples": 16},
    "lora": {"r": 8, "target_modules": "all-linear"},
    # So that its answers differ from those of the base.
    "training": {"max_steps": 6, "learning_rate": 3e-2, "batch_size": 2, "save_strategy": "no", "max_seq_length": 64},
}
ASKED: list[Any] = [{"role": "user", "content": "A train has 12 cars."}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    environment = {
        "ENABLE_ELASTIC_SCALING": "false",
        "HF_HUB_OFFLINE": "1",
        "LOG_FILE": "",
        "OMP_NUM_THREADS": "1",
        "TUNEFLEET_LOST_AFTER_S": "6",
        "TUNEFLEET_ENGINE_IDLE_S": "20",
    }
    data = tmp_path_factory.mktemp("serve")
    with LocalFleet(data, port=free_port(), workers=2, environment=environment, save_client=False) as made:
        made.await_workers(PATIENCE_S)
        yield made


@pytest.fixture
def client(fleet: LocalFleet) -> Iterator[Client]:
    with Client(fleet.url, fleet.key, patience_s=30) as made:
        yield made


def serve(client: Client, name: str, **spec: Any) -> str:
    wanted = {"taskType": "serve", "model": {"source": {"identifier": MODEL}}, "serve": {"name": name}, **spec}
    document = {"apiVersion": "tunefleet/v1", "metadata": {"name": name}, "spec": wanted}
    return client.submit(yaml.safe_dump(document)).task_id


Connect = Callable[..., openai.OpenAI]


@pytest.fixture
def endpoint(fleet: LocalFleet) -> Iterator[Connect]:
    """OpenAI's client of an endpoint."""
    with ExitStack() as opened:

        def connect(name: str, key: str | None = None, **options: Any) -> openai.OpenAI:
            url = f"{fleet.url}/serve/{name}/v1"
            return opened.enter_context(openai.OpenAI(base_url=url, api_key=key or fleet.key, **options))

        yield connect


def ready(ai: openai.OpenAI) -> list[str]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        try:
            return [model.id for model in ai.models.list()]
        except openai.InternalServerError as error:
            last = str(error)
            time.sleep(0.3)
    raise AssertionError(last)


def test_the_openai_client_lists_models_and_completes_with_and_without_a_stream(
    client: Client, endpoint: Connect
) -> None:
    serve(client, "bot", serve={"name": "bot", "wait_s": 0})
    ai = endpoint("bot", max_retries=0)
    with pytest.raises(openai.InternalServerError, match=r"loading its model|waits for a worker") as early:
        ai.with_options(timeout=60).chat.completions.create(model="bot", messages=ASKED)
    assert early.value.response.headers["retry-after"]
    assert ready(ai) == ["bot", MODEL]
    greedy: dict[str, Any] = {"model": "bot", "temperature": 0, "max_tokens": 12}
    whole = ai.chat.completions.create(messages=ASKED, **greedy)
    assert whole.usage is not None
    assert (whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("length", 12)
    chunks = list(ai.chat.completions.create(messages=ASKED, stream=True, **greedy))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks), "the client did not ask for the usage"
    counted = list(
        ai.chat.completions.create(messages=ASKED, stream=True, stream_options={"include_usage": True}, **greedy)
    )
    assert counted[-1].usage == whole.usage
    text = ai.completions.create(prompt="A train has", **greedy)
    assert text.choices[0].text
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        ai.chat.completions.create(model="other", messages=ASKED)
    with pytest.raises(openai.BadRequestError, match="messages"):
        ai.chat.completions.create(model="bot", messages=[])


def test_a_key_for_one_endpoint_calls_nothing_else(fleet: LocalFleet, client: Client, endpoint: Connect) -> None:
    ready(endpoint("bot"))
    own = client.keys.create("site", "endpoint", endpoint="bot").secret
    other = client.keys.create("app", "endpoint", endpoint="other").secret
    assert ready(endpoint("bot", own))
    with pytest.raises(openai.PermissionDeniedError, match="valid only for the endpoint other"):
        endpoint("bot", other).models.list()
    with pytest.raises(openai.AuthenticationError, match="key is not valid"):
        endpoint("bot", "tf_wrong").models.list()
    with pytest.raises(openai.NotFoundError, match="no endpoint nothing"):
        endpoint("nothing").models.list()
    with Client(fleet.url, own) as limited, pytest.raises(ForbiddenError):
        limited.tasks.list()


def test_a_client_that_leaves_stops_the_generation(client: Client, endpoint: Connect) -> None:
    ai = endpoint("bot")
    ready(ai)
    stream = ai.chat.completions.create(stream=True, **LONG)
    next(stream)
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        ai.with_options(timeout=0.2, max_retries=0).chat.completions.create(**LONG)
    deadline = time.monotonic() + PATIENCE_S
    while (found := client.endpoints.get("bot")).replicas[0].open_requests or found.waiting:
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def test_two_hundred_requests_at_the_same_time_are_all_answered(client: Client, endpoint: Connect) -> None:
    ai = endpoint("bot", max_retries=0, timeout=PATIENCE_S)
    ready(ai)
    time.sleep(FLUSH_S + 1)  # those of the tests before are counted then
    before = client.endpoints.get("bot")

    def ask(number: int) -> int:
        asked: dict[str, Any] = {"model": "bot", "messages": ASKED, "max_tokens": 8 + number % 9, "temperature": 0}
        if number % 2:
            whole = ai.chat.completions.create(**asked)
            assert whole.usage is not None
            return whole.usage.completion_tokens
        chunks = list(ai.chat.completions.create(stream=True, stream_options={"include_usage": True}, **asked))
        assert chunks[-1].usage is not None
        return chunks[-1].usage.completion_tokens

    with ThreadPoolExecutor(200) as pool:
        started = time.monotonic()
        tokens = list(pool.map(ask, range(200)))
        print(f"200 requests, {sum(tokens)} tokens: {time.monotonic() - started:.1f} s")
    assert tokens == [8 + number % 9 for number in range(200)]
    deadline = time.monotonic() + 20
    while (now := client.endpoints.get("bot")).requests < before.requests + 200:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert now.completion_tokens == before.completion_tokens + sum(tokens)


def test_a_newer_run_replaces_the_model_without_a_failed_request(client: Client, endpoint: Connect) -> None:
    ai = endpoint("bot", max_retries=0, timeout=PATIENCE_S)
    ready(ai)
    (old,) = client.endpoints.get("bot").replicas
    stop, failures, answers = threading.Event(), [], []

    def ask() -> None:
        while not stop.is_set():
            try:
                answers.append(ai.chat.completions.create(model="bot", messages=ASKED, max_tokens=4))
            except openai.OpenAIError as error:
                failures.append(error)

    with ThreadPoolExecutor(4) as pool:
        try:
            for _ in range(4):
                pool.submit(ask)
            new = serve(client, "bot")
            assert client.tasks.wait(old.task_id, timeout_s=PATIENCE_S).status == "completed"
        finally:
            stop.set()
    assert not failures
    assert answers
    assert [each.task_id for each in client.endpoints.get("bot").replicas] == [new]


def test_an_idle_endpoint_frees_its_worker_and_starts_again_with_a_request(client: Client, endpoint: Connect) -> None:
    first = serve(client, "nap", serve={"name": "nap", "wait_s": 200}, ttlSeconds=2)
    ai = endpoint("nap", max_retries=0, timeout=PATIENCE_S)
    # This request waits until the model is loaded.
    assert ai.completions.create(model="nap", prompt="One", max_tokens=2).usage
    assert client.tasks.wait(first, timeout_s=PATIENCE_S).status == "completed"
    assert client.endpoints.get("nap").state == "idle"
    key = client.keys.create("nap-user", "endpoint", endpoint="nap").secret
    assert endpoint("nap", key, max_retries=0, timeout=PATIENCE_S).completions.create(
        model="nap", prompt="One", max_tokens=2
    )
    (again,) = client.endpoints.get("nap").replicas
    assert again.task_id != first
    client.endpoints.stop("nap")
    assert client.tasks.wait(again.task_id, timeout_s=PATIENCE_S).status == "cancelled"
    with pytest.raises(openai.NotFoundError, match="no endpoint nap"):
        ai.models.list()


def test_another_worker_takes_over_from_one_that_dies(fleet: LocalFleet, client: Client, endpoint: Connect) -> None:
    ai = endpoint("bot", max_retries=0, timeout=PATIENCE_S)
    ready(ai)
    (replica,) = client.endpoints.get("bot").replicas
    (found,) = [each for each in Path(fleet.data).rglob("process.json") if each.parent.name == replica.task_id]
    names = {fleet.results_dir(number): name for number, name in enumerate(("worker", "worker-2"))}
    worker = fleet.pid(next(name for folder, name in names.items() if found.is_relative_to(folder)))
    assert worker is not None
    stream = ai.chat.completions.create(stream=True, **LONG)
    next(stream)
    # The worker is stopped and not killed: the fleet would start it again.
    os.kill(worker, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: ai.chat.completions.create(**{**LONG, "max_tokens": 4}))
            with pytest.raises(openai.APIError, match="lost during the response"):
                list(stream)
            assert waiting.result(PATIENCE_S).choices[0].message.content
        (after,) = client.endpoints.get("bot").replicas
        assert after.worker_id != replica.worker_id
    finally:
        os.kill(worker, signal.SIGCONT)
    client.endpoints.stop("bot")
    assert client.tasks.wait(replica.task_id, timeout_s=PATIENCE_S).status == "cancelled"
    with pytest.raises(openai.NotFoundError, match="no endpoint bot"):
        ai.models.list()


def test_a_trained_adapter_and_its_base_answer_under_their_names(client: Client, endpoint: Connect) -> None:
    trained = client.submit(yaml.safe_dump({"apiVersion": "tunefleet/v1", "spec": TUNED})).task_id
    assert client.tasks.wait(trained, timeout_s=PATIENCE_S).status == "completed"
    model = {"source": {"identifier": MODEL}, "adapters": [{"name": "french", "taskId": trained}]}
    run = serve(client, "many", model=model, serve={"name": "many", "wait_s": 200})
    ai = endpoint("many", timeout=PATIENCE_S)
    greedy: dict[str, Any] = {"messages": ASKED, "temperature": 0, "max_tokens": 12}
    # At the same time, so that batches of both take turns at the model.
    with ThreadPoolExecutor(6) as pool:
        names = ["many", "french", MODEL] * 2
        found = pool.map(lambda name: ai.chat.completions.create(model=name, **greedy), names)
        many, french, base, *again = [each.choices[0].message.content for each in found]
    assert many == base != french
    assert again == [many, french, base]
    assert ready(ai) == ["many", MODEL, "french"]
    client.tasks.cancel(run)
