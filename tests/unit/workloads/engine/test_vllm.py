"""The engine on vLLM without vLLM: a module that stands for it says when a step fails."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from tunefleet.workloads import assets
from tunefleet.workloads.engine import protocol
from tunefleet.workloads.engine.client import ConnectionLostError, EngineConnection
from tunefleet.workloads.engine.protocol import Choice, EngineAdapter, EngineModel, Request, Sampling


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Host, VllmEngine, base_model, server
    pytest.importorskip("torch")

    from tunefleet.workloads.common import base_model
    from tunefleet.workloads.engine import server
    from tunefleet.workloads.engine.server import Host
    from tunefleet.workloads.engine.vllm_backend import VllmEngine


pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]

MODEL = "builtin:gsm8k-llama-2m"
PATIENCE_S = 60.0


@dataclass
class Arguments:
    model: str = ""
    enable_lora: bool = False
    max_lora_rank: int = 0
    max_loras: int = 0
    max_cpu_loras: int = 0
    trust_remote_code: bool = False
    disable_log_stats: bool = False
    max_logprobs: int = 0
    gpu_memory_utilization: float = 0.0
    tensor_parallel_size: int = 1
    structured_outputs_config: Any = None


class Double:
    """vLLM's engine: answers each request at the next step with one token, until it is told to fail."""

    broken: ClassVar[threading.Event]
    held: ClassVar[threading.Event]

    def __init__(self) -> None:
        self.model_config = SimpleNamespace(max_model_len=512)
        self._asked: dict[str, list[int]] = {}

    @classmethod
    def from_engine_args(cls, _: Arguments) -> Double:
        return cls()

    def add_request(self, name: str, prompt: dict[str, list[int]], _: Any, lora_request: Any) -> None:
        self._asked[name] = prompt["prompt_token_ids"]

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self._asked.pop(name, None)

    def step(self) -> list[Any]:
        if Double.broken.is_set():
            raise RuntimeError("a kernel has failed")
        if Double.held.is_set():
            time.sleep(0.001)
            return []
        asked, self._asked = self._asked, {}
        places = [
            {
                7: SimpleNamespace(decoded_token="x", logprob=-1.5),
                5: SimpleNamespace(decoded_token="x", logprob=-0.5),
            }
        ]
        piece = {"index": 0, "text": "x", "token_ids": [5], "finish_reason": "stop", "logprobs": places}
        return [
            SimpleNamespace(request_id=name, finished=True, prompt_token_ids=ids, outputs=[SimpleNamespace(**piece)])
            for name, ids in asked.items()
        ]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[VllmEngine]:
    Double.broken, Double.held = threading.Event(), threading.Event()
    parts = {
        "vllm": {"EngineArgs": Arguments, "LLMEngine": Double, "SamplingParams": SimpleNamespace},
        "vllm.config": {"StructuredOutputsConfig": SimpleNamespace},
        "vllm.sampling_params": {
            "RequestOutputKind": SimpleNamespace(DELTA=1, FINAL_ONLY=2),
            "StructuredOutputsParams": SimpleNamespace,
        },
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": lambda *given: given},
    }
    for name, members in parts.items():
        module = ModuleType(name)
        module.__dict__.update(members)
        monkeypatch.setitem(sys.modules, name, module)
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    source = base_model.Source(MODEL, str(assets.locate(MODEL, "model")))
    model = EngineModel(MODEL, MODEL, adapters=(EngineAdapter("red", str(folder)),), engine="vllm")
    made = VllmEngine(model, source, lambda _: None)
    yield made
    made.close()


def ask(engine: VllmEngine, adapter: str | None = None) -> Choice:
    (answer,) = engine.generate([Request(0, "How many", Sampling(max_tokens=1, logprobs=2), adapter)])
    return answer.choices[0]


def until(good: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not good():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_two_tokens_of_one_text_each_have_their_probability(engine: VllmEngine) -> None:
    first, second = {"token": "x", "id": 5, "logprob": -0.5}, {"token": "x", "id": 7, "logprob": -1.5}
    assert ask(engine).logprobs == [[first, second]]


def test_a_failed_step_is_told_to_all_who_wait_and_to_all_who_come(engine: VllmEngine) -> None:
    assert ask(engine).text == "x"
    Double.held.set()
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(ask, engine)
        until(lambda: engine._requests)
        # Without a GPU one adapter at a time is on: this one waits for its turn.
        deferred = pool.submit(ask, engine, "red")
        until(lambda: engine._deferred)
        Double.broken.set()
        for asked in (waits, deferred):
            with pytest.raises(RuntimeError, match="a kernel has failed"):
                asked.result(PATIENCE_S)
    Double.broken.clear()
    with pytest.raises(RuntimeError, match="a kernel has failed"):
        ask(engine)
    assert engine.broken is not None


def test_a_broken_engine_leaves_its_socket_and_breaks_the_line(
    engine: VllmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "open_engine", lambda *_, **__: engine)
    address = tmp_path / "e.sock"
    about = {"model": asdict(EngineModel(MODEL, MODEL, engine="vllm")), "gpus": [], "site": "here"}

    def line() -> EngineConnection:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(address))
        return EngineConnection(connection)

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor() as pool:
        listener.bind(str(address))
        listener.listen()
        served = pool.submit(Host(listener, about, tmp_path / "e", 600).serve)
        held, asking = line(), line()
        with held, asking:
            held.send({"op": "hello"})
            assert held.read()["ready"]["name"] == "vllm"
            request = protocol.to_line({"request": asdict(Request(0, "How many", Sampling(max_tokens=1)))})
            whole = [json.loads(request), {}]
            asking.send({"op": "generate"}, *whole)
            assert asking.read()["answer"]["choices"][0]["text"] == "x"
            assert asking.read() == {"end": True}
            Double.broken.set()
            asking.send({"op": "generate"}, *whole)
            # Not an error that fails the task: as if the process had died, and another one is asked.
            with pytest.raises(ConnectionLostError):
                asking.read()
            assert served.result(PATIENCE_S) == 1, "though somebody is connected"
    assert not address.exists()
