"""A search for several tasks at once, on a database in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.retrieval import VectorSpec
from tunefleet.trainer_control import session


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Encoder, Item, Vectors, chunks, open_folder, searching
    pytest.importorskip("torch")
    pytest.importorskip("qdrant_client")

    from tunefleet.workloads.embedding.encoder import Encoder, Vectors
    from tunefleet.workloads.inference.items import Item
    from tunefleet.workloads.rag import retriever as searching
    from tunefleet.workloads.rag.indexer import chunks
    from tunefleet.workloads.rag.vector_db import open_folder


NOTES = ("apples", "train", "bread")


class Words:
    """A model that knows three words."""

    library = "transformers"
    dimension = len(NOTES)
    longest = None

    def vectors(self, texts: list[str], batch_size: int) -> Vectors:
        return np.array([[word in text for word in NOTES] for text in texts], dtype=np.float32)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(0, len(text))]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    encoder = Encoder(Words(), VectorSpec())  # type: ignore[arg-type]
    monkeypatch.setattr(searching, "open_encoder", lambda *_, **__: encoder)
    database = open_folder(tmp_path / "notes")
    into = database.create("notes", len(NOTES), "cosine", "words")
    pieces = chunks([Item(text) for text in NOTES], None, lambda text: [])
    points = [piece.id("notes") for piece in pieces]
    database.put(into, points, encoder.encode(NOTES), [piece.payload for piece in pieces])
    database.close()
    return tmp_path / "notes"


def search(folder: Path, notes: Path, data: dict[str, Any], **children: dict[str, Any]) -> dict[str, Any]:
    """Run the job of one task, to which others go along."""
    folder.mkdir()
    shared = {"qdrant": {"path": "./notes", "collection": "notes"}, "embedding": {"model": "words"}}
    spec = {"taskType": "rag", **shared, "search": {"top_k": 1}}
    job = {"job_id": "own", "task_id": "own", "attempt": 1, "launch": "l", "kind": "rag", "name": "t"}
    job |= {"program": "tunefleet.workloads.rag:main", "spec": spec | {"data": data}}
    job |= {"inputs": {"qdrant.path": str(notes)}}
    job |= {"merge_children": [{"task_id": name, "spec": spec | {"data": each}} for name, each in children.items()]}
    JobFolder(folder).job_json.write_text(json.dumps(job))
    session._sessions.clear()
    searching.run(folder)
    found: dict[str, Any] = json.loads(JobFolder(folder).responses_json.read_bytes())
    return found


def listed(*queries: str) -> dict[str, Any]:
    return {"type": "list", "items": list(queries)}


def nearest(result: dict[str, Any]) -> list[str]:
    return [query["items"][0]["payload"]["text"] for query in result["queries"]]


def test_a_task_that_goes_along_and_cannot_be_read_fails_alone(notes: Path, tmp_path: Path) -> None:
    result = search(
        tmp_path / "job",
        notes,
        listed("Who has apples?", "When goes the train?"),
        good=listed("Who sells bread?", "When goes the train?"),
        bad={"type": "dataset", "url": "builtin:gsm8k", "column": "nope"},
        odd=listed("Who?") | {"items": 3},
    )
    children = result.pop("children")
    assert nearest(result) == ["apples", "train"]
    assert nearest(children["good"]) == ["bread", "train"]
    assert children["bad"]["ok"] is False
    assert "has no column 'nope'" in children["bad"]["error"]
    assert set(children["odd"]) == {"ok", "error"}
