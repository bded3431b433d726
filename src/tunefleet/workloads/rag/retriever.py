"""The program of a `rag` task, and of the tasks merged with it.

Each task gets the hits of its own queries only; a query of several tasks is searched once.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tunefleet.errors import InputError, SpecError
from tunefleet.spec import RagTaskSpec
from tunefleet.spec.documents.paths import DATABASE
from tunefleet.trainer_control.files import write_json
from tunefleet.trainer_control.session import JobSession
from tunefleet.workloads.common.item_control import ProgressReporter
from tunefleet.workloads.common.job import checked, open_task
from tunefleet.workloads.embedding.encoder import Encoder, open_encoder
from tunefleet.workloads.inference.deduplication import batch
from tunefleet.workloads.inference.items import Item, read_items
from tunefleet.workloads.inference.merged_tasks import CHILDREN
from tunefleet.workloads.rag.indexer import about_database, fit
from tunefleet.workloads.rag.vector_db import Collection, Database, copy_database, open_folder, open_server

logger = logging.getLogger(__name__)

Hits = list[dict[str, Any]]


def run(folder: Path) -> None:
    """Search for each query of a job and of its children; an interrupted search starts again, which is cheap.

    Raises:
        TunefleetError: If the queries, the model or the database cannot be used.
    """
    began = time.monotonic()
    task = open_task(folder, RagTaskSpec, filled=False)
    job, spec, session = task.job, task.spec, task.session
    asked = {job.task_id: _queries(spec, job.inputs, folder)}
    failed: dict[str, dict[str, Any]] = {}
    for child in job.merge_children:
        try:
            wanted = checked(child.spec, RagTaskSpec, filled=False)
            asked[child.task_id] = _queries(wanted, child.inputs, folder / CHILDREN / child.task_id)
        except (InputError, SpecError) as error:
            # Only this child fails; the others continue.
            logger.warning("Task %s fails: %s", child.task_id, error)
            failed[child.task_id] = {"ok": False, "error": str(error)}
    joined = batch({task_id: [item.text for item in items] for task_id, items in asked.items()})
    database = _open(folder, spec, job.inputs)
    try:
        collection = database.require(spec.qdrant.collection)
        encoder = open_encoder(
            spec.embedding.model,
            job.inputs.get("embedding.model"),
            spec.embedding,
            revision=spec.embedding.revision,
            trust_remote_code=spec.embedding.trust_remote_code,
        )
        fit(collection, encoder, spec.embedding.model)
        _warn_of_model(session, collection, spec)
        progress = ProgressReporter(session, len(joined.unique))
        hits = _searched(database, collection, encoder, spec, joined.unique, progress)
    finally:
        database.close()
        shutil.rmtree(folder / "database", ignore_errors=True)
    took_s = round(time.monotonic() - began, 3)
    results = {
        task_id: _result(spec, encoder, asked[task_id], mine, took_s) for task_id, mine in joined.spread(hits).items()
    }
    own = results.pop(job.task_id)
    if job.merge_children:
        own[CHILDREN] = results | failed
    write_json(task.folder.responses_json, own, sync=True)


def _queries(spec: RagTaskSpec, inputs: Mapping[str, str], workspace: Path) -> list[Item]:
    if spec.query is not None:
        return [Item(spec.query)]
    assert spec.data is not None, "the spec has one of both"
    return read_items(spec.data, inputs, workspace / "inputs")


def _open(folder: Path, spec: RagTaskSpec, inputs: Mapping[str, str]) -> Database:
    if spec.qdrant.url is not None:
        return open_server(spec.qdrant)
    keys = (DATABASE, f"{DATABASE}.path", f"{DATABASE}.artifact")
    found = next((inputs[key] for key in keys if key in inputs), None)
    if found is None:
        raise InputError("spec.qdrant: the database is not on this worker.")
    # Opening takes a lock and may write: other jobs may search the same folder now, and it is an artifact.
    mine = folder / "database"
    shutil.rmtree(mine, ignore_errors=True)
    copy_database(Path(found), mine)
    return open_folder(mine)


def _warn_of_model(session: JobSession, collection: Collection, spec: RagTaskSpec) -> None:
    if collection.model is not None and collection.model != spec.embedding.model:
        session.journal.event(
            "rag.other_model",
            f"The collection {collection.name} was created with {collection.model}, but is searched with "
            f"{spec.embedding.model}: hits are meaningful only if both are the same model.",
            "warning",
        )


def _searched(
    database: Database,
    collection: Collection,
    encoder: Encoder,
    spec: RagTaskSpec,
    queries: Sequence[str],
    progress: ProgressReporter,
) -> list[Hits]:
    found: list[Hits] = []
    at_once = 8 * spec.embedding.batch_size
    for begin in range(0, len(queries), at_once):
        progress.at(begin)
        found += database.search(
            collection,
            encoder.encode(queries[begin : begin + at_once]),
            top_k=spec.search.top_k,
            threshold=spec.search.score_threshold,
            only=spec.search.filter,
        )
    progress.at(len(queries))
    return found


def _result(
    spec: RagTaskSpec, encoder: Encoder, asked: Sequence[Item], found: Sequence[Hits], took_s: float
) -> dict[str, Any]:
    queries: list[dict[str, Any]] = []
    for index, (item, hits) in enumerate(zip(asked, found, strict=True)):
        each: dict[str, Any] = {"index": index, "query": item.text, "items": hits}
        if item.metadata:
            each["metadata"] = item.metadata
        queries.append(each)
    return {
        "ok": True,
        "executor": "rag",
        "qdrant": about_database(spec.qdrant.collection, spec.qdrant.url),
        "embedding": {"model": spec.embedding.model, "dimension": encoder.dimension},
        "search": spec.search.model_dump(exclude_none=True),
        "queries": queries,
        "usage": {
            "latency_sec": took_s,
            "num_queries": len(queries),
            "total_results": sum(len(hits) for hits in found),
        },
    }
