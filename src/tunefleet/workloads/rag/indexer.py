"""The program of a `rag_index` task: long texts in chunks, their vectors into the database.

Vectors are stored as they are computed, and so is the number of points in the database: a relaunch continues there. A
point that was written but not counted is replaced by itself.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import RagIndexTaskSpec
from tunefleet.spec.documents.paths import DATABASE
from tunefleet.spec.tasks.retrieval import INDEX, ChunkingSpec
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.trainer_control.session import JobSession
from tunefleet.workloads.common.item_control import ItemControl, ProgressReporter
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.embedding.encoder import Encoder, Vectors, open_encoder
from tunefleet.workloads.embedding.vector_cache import VectorCache, encoded, fingerprint
from tunefleet.workloads.inference.items import Item, read_items
from tunefleet.workloads.rag.vector_db import Collection, Database, copy_database, open_folder, open_server

_POINTS_AT_ONCE: Final = 256
_DOCUMENTS_AT_ONCE: Final = 100
_BATCHES_KEPT: Final = 8
_WORK: Final = "vectors"
_POINTS: Final = uuid.UUID("6f1d1e0e-3c5b-5d0a-9a7e-2f6b3c1d4e5f")
Offsets = Callable[[str], list[tuple[int, int]]]
"""From a text to the character offsets of its tokens."""


def run(folder: Path) -> None:
    """Index a job's texts in the database; resumes after an earlier launch.

    Raises:
        TunefleetError: If the data, the model or the database cannot be used.
    """
    task = open_task(folder, RagIndexTaskSpec, filled=False)
    database = _open(folder, task.spec, task.job)
    try:
        this = _Run(folder, task.session, task.job, task.spec, database)
        with ItemControl(task.session, kept=_WORK) as heeding:
            result = this.result(heeding.heed)
    finally:
        database.close()
    # The folder is delivered as an artifact, without the client's lock.
    (folder / INDEX / ".lock").unlink(missing_ok=True)
    write_json(task.folder.responses_json, result, sync=True)
    shutil.rmtree(folder / _WORK)


class _Run:
    """The steps of a run while the database is open."""

    def __init__(self, folder: Path, session: JobSession, job: Job, spec: RagIndexTaskSpec, database: Database) -> None:
        self._began = time.monotonic()
        self._work = folder / _WORK
        self._session = session
        self._job = job
        self._spec = spec
        self._database = database
        # Before any work, so that a wrong address or collection fails early.
        self._existing = database.find(spec.qdrant.collection)
        self._items = read_items(spec.data, job.inputs, folder / "inputs")
        self._encoder = open_encoder(
            spec.embedding.model,
            job.inputs.get("embedding.model"),
            spec.embedding,
            revision=spec.embedding.revision,
            trust_remote_code=spec.embedding.trust_remote_code,
        )
        if spec.mode == "append":
            fit(self._existing, self._encoder, spec.embedding.model)

    def result(self, check_commands: Callable[[int], None]) -> dict[str, Any]:
        """Embed and index; return the result."""
        spec, encoder = self._spec, self._encoder
        pieces = chunks(self._items, spec.chunking, encoder.model.offsets)
        texts = [piece.text for piece in pieces]
        about = fingerprint(texts, self._job.inputs, spec.embedding.model_dump(exclude={"batch_size"}))
        kept = VectorCache(self._work, encoder.dimension, about)
        before = kept.count
        report = ProgressReporter(self._session, len(texts), before, check_commands=check_commands).at
        vectors = encoded(kept, texts, _BATCHES_KEPT * spec.embedding.batch_size, encoder, report)
        note = IndexProgress(self._work / "points.json", about)
        target = _target(self._database, spec, encoder.dimension, note)
        progress = ProgressReporter(self._session, len(texts), note.done, "indexing", check_commands=check_commands)
        _put(self._database, target, pieces, vectors, note, progress)
        about_it = about_database(target.name, spec.qdrant.url)
        return {
            "ok": True,
            "executor": "rag_index",
            "qdrant": about_it if spec.qdrant.url else {**about_it, "path": INDEX},
            "embedding": {"model": spec.embedding.model, "dimension": encoder.dimension},
            "documents": len({piece.source for piece in pieces}),
            "chunks": len(pieces),
            "points": self._database.count(target.name),
            "usage": {
                "texts": len(texts),
                "computed": len(texts) - before,
                "prompt_tokens": encoder.tokens,
                "truncated": encoder.cut,
                "latency_sec": round(time.monotonic() - self._began, 3),
            },
        }


def about_database(collection: str, url: str | None) -> dict[str, Any]:
    """Return the database's fields of a result; secrets in an address stay references."""
    return {"collection": collection, "url": url}


def fit(existing: Collection | None, encoder: Encoder, model: str) -> None:
    """Check that a model fits a collection.

    Raises:
        InputError: If the dimensions differ.
    """
    if existing is not None and existing.dimension != encoder.dimension:
        made = f" It was created with {existing.model}." if existing.model else ""
        raise InputError(
            f"The collection {existing.name} has vectors of dimension {existing.dimension}, but {model} has "
            f"{encoder.dimension}.{made}",
            hint="Use the model of the collection, or another collection.",
        )


class IndexProgress:
    """Progress of indexing, on disk."""

    def __init__(self, file: Path, of: str) -> None:
        self._file = file
        self._of = of
        found = read_json(file) or {}
        mine = found.get("of") == of
        self.prepared = mine
        """Whether the collection is ready for points: emptied, if requested."""
        self.done = int(found.get("done", 0)) if mine else 0
        """Number of points in the database."""

    def write(self, done: int) -> None:
        """Record that the collection is ready, and its number of points."""
        self.prepared, self.done = True, done
        write_json(self._file, {"of": self._of, "done": done}, sync=True)


def _open(folder: Path, spec: RagIndexTaskSpec, job: Job) -> Database:
    if spec.qdrant.url is not None:
        return open_server(spec.qdrant)
    path = folder / INDEX
    base = job.inputs.get(DATABASE) or job.inputs.get(f"{DATABASE}.artifact")
    if base is not None and not path.exists():
        copy_database(Path(base), path)
    return open_folder(path)


def _target(database: Database, spec: RagIndexTaskSpec, dimension: int, note: IndexProgress) -> Collection:
    name = spec.qdrant.collection
    existing = database.find(name)
    if existing is not None and spec.mode == "recreate" and not note.prepared:
        database.delete(name)
        existing = None
    return existing or database.create(name, dimension, spec.distance, spec.embedding.model)


def _put(
    database: Database,
    target: Collection,
    pieces: Sequence[Chunk],
    vectors: Vectors,
    note: IndexProgress,
    progress: ProgressReporter,
) -> None:
    if not note.prepared:
        # A document that became shorter must not keep its old last chunks.
        counts = list(Counter(piece.source for piece in pieces).items())
        for begin in range(0, len(counts), _DOCUMENTS_AT_ONCE):
            database.forget(target.name, counts[begin : begin + _DOCUMENTS_AT_ONCE])
        # Recorded before the first point: a relaunch must not empty the collection again.
        note.write(0)
    for begin in range(note.done, len(pieces), _POINTS_AT_ONCE):
        progress.at(begin)
        some = pieces[begin : begin + _POINTS_AT_ONCE]
        ids = [piece.id(target.name) for piece in some]
        database.put(target, ids, vectors[begin : begin + len(some)], [piece.payload for piece in some])
        note.write(begin + len(some))
    progress.at(len(pieces))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a document."""

    source: str
    number: int
    text: str
    metadata: dict[str, Any]

    def id(self, collection: str) -> str:
        """Return the point id: equal for the same chunk of the same document, so that indexing again replaces it."""
        return str(uuid.uuid5(_POINTS, f"{collection}\0{self.source}\0{self.number}"))

    @property
    def payload(self) -> dict[str, Any]:
        """The payload next to its vector."""
        return {"text": self.text, "metadata": self.metadata, "source": self.source, "chunk": self.number}


def chunks(items: Sequence[Item], how: ChunkingSpec | None, offsets: Offsets) -> list[Chunk]:
    """Return the chunks of documents, in order; for a duplicate document, of the last one only.

    Args:
        how: How long texts are split; None keeps them whole.
    """
    found: dict[str, list[Chunk]] = {}
    for item in items:
        source = _source(item)
        pieces = [item.text] if how is None else _cut(item.text, how, offsets)
        found[source] = [Chunk(source, number, text, item.metadata) for number, text in enumerate(pieces)]
    return [chunk for each in found.values() for chunk in each]


def _source(item: Item) -> str:
    for key in ("source", "id"):
        named = item.metadata.get(key)
        if isinstance(named, str | int) and not isinstance(named, bool) and str(named):
            return str(named)
    return hashlib.sha256(item.text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _cut(text: str, how: ChunkingSpec, offsets: Offsets) -> list[str]:
    places = offsets(text) if how.by == "tokens" else [(at, at + 1) for at in range(len(text))]
    if len(places) <= how.size:
        return [text]
    return [text[begin:end] for begin, end in _windows(places, how)]


def _windows(places: Sequence[tuple[int, int]], how: ChunkingSpec) -> Iterator[tuple[int, int]]:
    step = how.size - how.overlap
    for first in range(0, len(places), step):
        last = min(first + how.size, len(places)) - 1
        yield places[first][0], places[last][1]
        if last == len(places) - 1:
            return
