"""Kinds without a training that go through items: a pause between two batches, by the control port, and the way on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.workloads.conftest import Ended
from tests.libraries import required
from tests.making.sentence_model import make
from tunefleet.runtime.control import ControlClient, find_endpoint
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.trainer_control import session
from tunefleet.workloads import entrypoint

required("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::FutureWarning")]

Go = Callable[..., Ended]
TEXTS = [f"note {number} of many" for number in range(20)]
LISTED = {"type": "list", "items": TEXTS}


@pytest.fixture
def go(tmp_path: Path) -> Go:
    """One launch of a program: with `again=` on an older folder."""
    numbers = itertools.count(1)

    def launch(program: str, spec: dict[str, Any], again: Ended | None = None) -> Ended:
        name = f"launch-{next(numbers)}"
        folder = again.folder if again else JobFolder(tmp_path / "job")
        folder.root.mkdir(exist_ok=True)
        # Each launch is a process of its own; here it is the same one, so it must forget the launch before.
        session._sessions.clear()
        job = {"job_id": "own", "task_id": "own", "attempt": 1, "launch": name, "kind": spec["taskType"], "name": "t"}
        job |= {"program": program, "spec": spec, "inputs": {}, "endpoint_dir": str(tmp_path / "endpoints")}
        folder.job_json.write_text(json.dumps(job))
        try:
            code = entrypoint.main(folder.root)
        except SystemExit as end:
            code = int(end.code or 0)
        return Ended(code, folder, name)

    return launch


@pytest.fixture
def ask_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Give the job commands while a function is called for the n-th time; returns a list of its calls."""

    def wrap(owner: Any, name: str, at: int, *asked: str) -> list[int]:
        usual, calls = getattr(owner, name), list[int]()

        def counted(*args: Any, **given: Any) -> Any:
            calls.append(len(calls) + 1)
            if len(calls) == at:
                endpoint = find_endpoint(tmp_path / "endpoints", "own")
                assert endpoint is not None, "the job can be found while it works"
                for command in asked:
                    ControlClient(endpoint).send(command, command_id=command)
            return usual(*args, **given)

        monkeypatch.setattr(owner, name, counted)
        return calls

    return wrap


def outcomes(ended: Ended) -> dict[str, tuple[Any, ...]]:
    stored = json.loads((ended.folder.root / "commands.json").read_bytes())["commands"]
    return {each["command"]: (each["state"], each["step"], each["checkpoint"]) for each in stored}


def test_an_embedding_is_saved_and_paused_between_batches_and_makes_no_vector_twice(
    go: Go, ask_at: Callable[..., list[int]], tmp_path: Path
) -> None:
    required("sentence_transformers")
    from tunefleet.workloads.embedding.encoder import Encoder

    model = make(tmp_path / "model")
    calls = ask_at(Encoder, "encode", 1, "evaluate", "save_checkpoint", "pause")
    spec = {"taskType": "embedding", "model": {"source": {"identifier": str(model)}}, "data": LISTED}
    spec |= {"embedding": {"batch_size": 1}}
    program = "tunefleet.workloads.embedding:main"
    paused = go(program, spec)
    assert (paused.code, paused.status.state, paused.status.step) == (0, "paused", 8)
    assert outcomes(paused) == {
        "evaluate": ("failed", None, None),
        "save_checkpoint": ("durable", 8, "vectors.f32"),
        "pause": ("durable", 8, "vectors.f32"),
    }
    assert not paused.folder.responses_json.exists()
    usage = go(program, spec, again=paused).result["usage"]
    assert (usage["texts"], usage["computed"], len(calls)) == (20, 12, 3)


def test_an_index_is_paused_while_it_embeds_and_while_it_fills_the_database(
    go: Go, ask_at: Callable[..., list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required("qdrant_client", "sentence_transformers")
    from tunefleet.workloads.embedding.encoder import Encoder
    from tunefleet.workloads.rag import indexer
    from tunefleet.workloads.rag.vector_db import Database

    monkeypatch.setattr(indexer, "_POINTS_AT_ONCE", 5)
    model = str(make(tmp_path / "model"))
    spec = {"taskType": "rag_index", "qdrant": {"collection": "notes"}, "data": LISTED}
    spec |= {"embedding": {"model": model, "batch_size": 1}}
    program = "tunefleet.workloads.rag:index"
    encoded = ask_at(Encoder, "encode", 1, "pause")
    first = go(program, spec)
    assert (first.code, first.status.state, first.status.step) == (0, "paused", 8)
    put = ask_at(Database, "put", 2, "pause")
    second = go(program, spec, again=first)
    assert (second.code, second.status.state, second.status.step) == (0, "paused", 10)
    found = go(program, spec, again=second).result
    assert (found["points"], found["usage"]["computed"]) == (20, 0)
    assert (len(encoded), len(put)) == (3, 4), "nothing is done twice"


# The end of the process closes its files; here it is not the end.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_evaluation_is_paused_between_batches_and_measures_no_row_twice(
    go: Go, ask_at: Callable[..., list[int]], tiny_model: Path, tmp_path: Path
) -> None:
    from tunefleet.workloads.evaluation import loss

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": f"{text} and more"}) + "\n" for text in TEXTS))
    measured = {"type": "loss", "data": {"path": str(rows), "text_field": "text"}, "batch_size": 5}
    spec = {"taskType": "evaluate", "model": {"source": {"identifier": str(tiny_model)}}, "evaluations": [measured]}
    calls = ask_at(loss, "_losses", 2, "pause")
    program = "tunefleet.workloads.evaluation:main"
    paused = go(program, spec)
    assert (paused.code, paused.status.state, paused.status.step) == (0, "paused", 10)
    assert outcomes(paused) == {"pause": ("durable", 10, "evaluations")}
    assert go(program, spec, again=paused).result["ok"]
    assert len(calls) == 4


@pytest.mark.parametrize(
    ("program", "spec"),
    [
        ("embedding", {"taskType": "embedding", "model": {"source": {"identifier": "./nowhere"}}}),
        ("rag:index", {"taskType": "rag_index", "qdrant": {"collection": "n"}, "embedding": {"model": "./nowhere"}}),
    ],
)
def test_a_model_that_is_nowhere_is_a_mistake_of_the_document(program: str, spec: dict[str, Any], go: Go) -> None:
    name, _, function = program.partition(":")
    ended = go(f"tunefleet.workloads.{name}:{function or 'main'}", {**spec, "data": LISTED})
    assert ended.code == entrypoint.INPUT_FAILED
    assert "./nowhere" in (ended.status.error or "")
