"""Our own executors, held to the contract that other packages hold theirs to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.fakes.service import Service, serving
from tests.libraries import required
from tunefleet.executors.api import ApiExecutor
from tunefleet.executors.base import LightExecutor
from tunefleet.executors.command import PythonExecutor
from tunefleet.executors.data_and_echo import DataExecutor, EchoExecutor
from tunefleet.executors.inference import InferenceExecutor
from tunefleet.executors.rag import RagExecutor
from tunefleet.testing import JobContract, LightContract

BUILTIN = "builtin:gsm8k-llama-2m"
DIMENSION = 192
"""Of the vectors of the built-in model."""


class TestEcho(LightContract):
    executor = EchoExecutor
    spec = {"data": {"type": "list", "items": ["a", 2, {"three": None}]}}


class TestApi(LightContract):
    executor: ClassVar[type[LightExecutor]] = ApiExecutor
    service: ClassVar[Service]

    @pytest.fixture(autouse=True)
    def _service(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "127.0.0.1")
        with serving() as service:
            message = {"messages": [{"role": "user", "content": "{{prompt}}"}]}
            type(self).spec = {
                "api": {"url": service.url, "json": message},
                "data": {"type": "list", "items": ["a", "b"]},
            }
            type(self).bad_spec = {"api": {"url": "http://169.254.169.254/latest", "json": {}}}
            yield


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.timeout(400)
class TestData(JobContract):
    executor = DataExecutor
    warm = True
    spec = {"sources": [{"path": "./rows.jsonl"}], "steps": ["shuffle", {"dedupe": {}}], "format": "parquet"}
    bad_spec = {**spec, "steps": [{"filter": {"column": "n", "lt": 0}}]}

    def inputs_of(self, tmp_path: Path) -> Mapping[str, str]:
        required("datasets")
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(f'{{"n": {n}, "text": "row {n % 1000}"}}\n' for n in range(20_000)))
        return {"sources.0.path": str(path)}

    def time_to_kill(self, folder: Path) -> bool:
        """Once all rows lie there shuffled, and none is written."""
        return bool(list(folder.glob("rows/*.json")))


@pytest.mark.proof
@pytest.mark.timeout(400)
class TestPython(JobContract):
    executor = PythonExecutor
    code = """
import pathlib, time
def main():
    pathlib.Path("output", "begun").write_text("yes")
    time.sleep(2)
    return {"n": 1, "metrics": {"loss": 0.5}}
"""
    # How a function is kept from the network is asked elsewhere; not every machine can.
    spec = {"code": code, "network": "bridge"}
    bad_spec = {**spec, "emits": ["nothing_of_the_kind"]}

    def time_to_kill(self, folder: Path) -> bool:
        """While the function runs."""
        return (folder / "python" / "output" / "begun").exists()

    def same(self, result: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
        """Whether they are the same but for how long they took."""
        plain = [{key: value for key, value in each.items() if key != "run"} for each in (result, other)]
        return super().same(*plain)


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.timeout(400)
class TestInference(JobContract):
    executor = InferenceExecutor
    warm = True
    # As on a worker: the launches after the first one find the model loaded.
    environment = {"TUNEFLEET_ENGINE_IDLE_S": "15"}
    spec = {
        "model": {"source": {"identifier": BUILTIN}},
        "inference": {"max_tokens": 4, "temperature": 0},
        "data": {"type": "list", "items": ["How many apples", "A train leaves"]},
    }
    bad_spec = {**spec, "model": {"source": {"identifier": "./nowhere"}}}
    long_spec = {
        **spec,
        "inference": {"max_tokens": 16, "temperature": 0},
        "data": {"type": "list", "items": [f"{number} apples cost" for number in range(40)]},
    }
    children = ({**spec, "data": {"type": "list", "items": ["A train leaves", "Anna gives"]}},)


@pytest.mark.proof
@pytest.mark.torch
@pytest.mark.timeout(400)
class TestRag(JobContract):
    executor = RagExecutor
    warm = True
    spec = {
        "qdrant": {"path": "./notes", "collection": "notes"},
        "embedding": {"model": BUILTIN},
        "search": {"top_k": 1},
        "data": {"type": "list", "items": ["Who has apples?", "When does the train leave?"]},
    }
    bad_spec = {**spec, "qdrant": {"path": "./notes", "collection": "nothing"}}
    children = ({**spec, "data": {"type": "list", "items": ["When does the train leave?", "Who sells bread?"]}},)

    def inputs_of(self, tmp_path: Path) -> Mapping[str, str]:
        required("qdrant_client")
        from tunefleet.workloads.inference.items import Item
        from tunefleet.workloads.rag.indexer import chunks
        from tunefleet.workloads.rag.vector_db import open_folder

        path = tmp_path / "notes"
        if not path.exists():
            vectors = np.eye(3, DIMENSION, dtype=np.float32)
            database = open_folder(path)
            into = database.create("notes", DIMENSION, "cosine", BUILTIN)
            texts = ["Anna has seven apples.", "The train will leave at eleven.", "The bakery sells bread."]
            pieces = chunks([Item(text) for text in texts], None, lambda text: [])
            database.put(into, [piece.id("notes") for piece in pieces], vectors, [piece.payload for piece in pieces])
            database.close()
        return {"qdrant.path": str(path)}
