"""Endpoints: real servers, workers and models, called with OpenAI's own client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import openai
import pytest
import yaml

from tunefleet.cli.local_cluster.supervisor import LocalFleet
from tunefleet.client import Client

pytestmark = [pytest.mark.proof, pytest.mark.torch, pytest.mark.timeout(400)]

MODEL = "builtin:gsm8k-llama-2m"
PATIENCE_S = 240.0
ASKED: list[Any] = [{"role": "user", "content": "A train has 12 cars."}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, free_port: Callable[[], int]) -> Iterator[LocalFleet]:
    environment = {
        "ENABLE_ELASTIC_SCALING": "false",
        "HF_HUB_OFFLINE": "1",
        "LOG_FILE": "",
        "OMP_NUM_THREADS": "1",
        "TUNEFLEET_ENGINE_IDLE_S": "20",
    }
    data = tmp_path_factory.mktemp("serve")
    with LocalFleet(data, port=free_port(), environment=environment, save_client=False) as made:
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
