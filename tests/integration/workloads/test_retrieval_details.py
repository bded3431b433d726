"""Vectors and their database in this process: pieces, ids, what a second index does, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fakes.qdrant import QdrantDouble
from tests.libraries import required
from tests.making.sentence_model import DIMENSION, make
from tunefleet.errors import InputError, ModelError, UnreachableError
from tunefleet.spec import load_task_spec
from tunefleet.spec.tasks.retrieval import ChunkingSpec, QdrantSpec, VectorSpec


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """Imported for the tests, not to collect them."""
    global Database, Encoder, Item, VectorCache, chunks, indexing, open_encoder, open_folder, open_server
    pytest.importorskip("qdrant_client")
    pytest.importorskip("torch")

    from tunefleet.workloads.embedding.encoder import Encoder, open_encoder
    from tunefleet.workloads.embedding.vector_cache import VectorCache
    from tunefleet.workloads.inference.items import Item
    from tunefleet.workloads.rag import indexer as indexing
    from tunefleet.workloads.rag.indexer import chunks
    from tunefleet.workloads.rag.vector_db import Database, open_folder, open_server


pytestmark = [pytest.mark.torch, pytest.mark.timeout(300)]

LONG = "One two three four five six seven eight nine ten."


def characters(text: str) -> list[tuple[int, int]]:
    return [(at, at + 1) for at in range(len(text))]


def test_pieces_overlap_leave_nothing_out_and_keep_their_ids() -> None:
    how = ChunkingSpec(size=20, overlap=5)
    found = chunks([Item(LONG, {"source": "a.md"}), Item("short")], how, characters)
    assert [piece.number for piece in found] == [0, 1, 2, 0]
    assert found[0].text + found[1].text[5:] + found[2].text[5:] == LONG
    assert [piece.source for piece in found[:3]] == ["a.md"] * 3
    again = chunks([Item("short"), Item(LONG, {"source": "a.md"}), Item("short")], how, characters)
    assert {piece.id("c") for piece in again} == {piece.id("c") for piece in found}
    assert {piece.id("other") for piece in again}.isdisjoint({piece.id("c") for piece in found})
    assert [piece.text for piece in chunks([Item("")], how, characters)] == [""]


def test_a_model_that_was_not_made_for_it_gives_the_mean_over_its_tokens(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    from tunefleet.workloads import assets

    folder = str(assets.locate("builtin:gsm8k-llama-2m", "model"))
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    texts = ["a short one", LONG * 3, "and a last"]
    with torch.inference_mode():
        by_hand = [
            model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).last_hidden_state[0].mean(0)
            for text in texts
        ]
    encoder = open_encoder("builtin:gsm8k-llama-2m", None, VectorSpec(normalize=False, batch_size=2))
    found = encoder.encode(texts)
    assert found == pytest.approx(torch.stack(by_hand).numpy(), abs=1e-4)
    assert encoder.cut == 0
    shorter = open_encoder("builtin:gsm8k-llama-2m", None, VectorSpec(max_length=3))
    assert np.linalg.norm(shorter.encode(texts), axis=1) == pytest.approx(1.0)
    assert (shorter.cut, shorter.tokens) == (2, 9), "the first one has three tokens"
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match="is an adapter"):
        open_encoder("x", str(tmp_path), VectorSpec())


def test_vectors_that_were_kept_survive_a_torn_tail_and_only_their_own_run(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    VectorCache(tmp_path / "v", 4, "run").append(rows[:2])
    with (tmp_path / "v" / "vectors.f32").open("ab") as file:
        file.write(b"torn")
    kept = VectorCache(tmp_path / "v", 4, "run")
    assert kept.count == 2
    kept.append(rows[2:])
    assert kept.read().tolist() == rows.tolist()
    assert VectorCache(tmp_path / "v", 4, "another run").count == 0


class Index:
    """Puts notes into a database, as a task does, without the task."""

    def __init__(self, database: Database, encoder: Encoder, work: Path) -> None:
        self._database = database
        self._encoder = encoder
        self._work = work
        self._runs = 0

    def put(self, notes: dict[str, str], **changes: Any) -> int:
        """Return how many points there are afterwards."""
        self._runs += 1
        (self._work / str(self._runs)).mkdir()
        given = {"taskType": "rag_index", "qdrant": {"collection": "notes"}, "data": {"type": "list", "items": ["-"]}}
        spec = load_task_spec({**given, **changes})
        pieces = chunks([Item(text, {"source": source}) for source, text in notes.items()], spec.chunking, characters)
        note = indexing.IndexProgress(self._work / str(self._runs) / "points.json", "run")
        target = indexing._target(self._database, spec, self._encoder.dimension, note)
        vectors = self._encoder.encode([piece.text for piece in pieces])

        class Nobody:
            def at(self, done: int) -> None:
                pass

        indexing._put(self._database, target, pieces, vectors, note, Nobody())  # type: ignore[arg-type]
        return self._database.count("notes")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    required("sentence_transformers")
    return open_encoder("words", str(make(tmp_path_factory.mktemp("model"))), VectorSpec())


@pytest.mark.parametrize("where", ["folder", "server"])
def test_a_second_index_doubles_nothing_and_forgets_what_a_document_no_longer_says(
    encoder: Encoder, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "127.0.0.1")
    with QdrantDouble() as server:
        spec = QdrantSpec(url=server.url, collection="notes")
        database = open_folder(tmp_path / "db") if where == "folder" else open_server(spec)
        index = Index(database, encoder, tmp_path)
        cut = {"chunking": {"size": 20, "overlap": 0, "by": "characters"}}
        assert index.put({"a": LONG, "b": "bread and rolls"}, **cut) == 4
        assert index.put({"a": LONG, "b": "bread and rolls"}, **cut) == 4
        assert index.put({"a": "Only this."}, **cut) == 2
        there = database.require("notes")
        hits = database.search(there, encoder.encode(["rolls"]), top_k=9, threshold=None, only=None)[0]
        assert [hit["payload"]["text"] for hit in hits] == ["bread and rolls", "Only this."]
        only = {"must": [{"key": "metadata.source", "match": {"value": "a"}}]}
        hits = database.search(there, encoder.encode(["rolls"]), top_k=9, threshold=None, only=only)[0]
        assert [hit["payload"]["source"] for hit in hits] == ["a"]
        with pytest.raises(InputError, match=r"spec.search.filter"):
            database.search(there, encoder.encode(["rolls"]), top_k=9, threshold=None, only={"must": [{"kex": 1}]})
        assert index.put({"c": "c"}, mode="recreate") == 1
        other = database.create("wide", DIMENSION + 1, "cosine", "other")
        with pytest.raises(InputError, match=rf"vectors of dimension {DIMENSION + 1}, but words has {DIMENSION}"):
            indexing.fit(other, encoder, "words")
        database.close()


def test_a_server_that_refuses_or_is_not_there_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "127.0.0.1")
    with QdrantDouble("key") as server:
        spec = QdrantSpec(url=server.url, collection="notes")
        with pytest.raises(InputError, match=r"returned 401: Must provide an API key\. Set qdrant.api_key"):
            open_server(spec).find("notes")
        server.key, server.answers = None, [503]
        with pytest.raises(UnreachableError, match="returned 503: not now"):
            open_server(spec).find("notes")
    with pytest.raises(UnreachableError, match="Cannot reach"):
        open_server(spec).find("notes")
    monkeypatch.setenv("TUNEFLEET_URL_ALLOW", "")
    with pytest.raises(InputError, match="not a public address"):
        open_server(spec).find("notes")
