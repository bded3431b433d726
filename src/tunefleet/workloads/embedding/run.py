"""The program of an `embedding` task."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from tunefleet.artifacts import hash_file
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import EmbeddingTaskSpec
from tunefleet.spec.tasks.retrieval import VECTORS
from tunefleet.trainer_control.files import write_json
from tunefleet.workloads.common.item_control import ItemControl, ProgressReporter
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.embedding.encoder import Encoder, Loading, Vectors, open_encoder
from tunefleet.workloads.embedding.vector_cache import VectorCache, encoded, fingerprint
from tunefleet.workloads.inference.items import Item, read_items

# Batches between two writes: few enough to lose little, enough to sort texts by length.
_BATCHES_KEPT: Final = 8
_INLINE: Final = 16


def run(folder: Path) -> None:
    """Compute the vectors of a job's items; resumes after an earlier launch.

    Raises:
        TunefleetError: If the data or the model cannot be used.
    """
    began = time.monotonic()
    task = open_task(folder, EmbeddingTaskSpec, filled=False)
    job, spec, session = task.job, task.spec, task.session
    items = read_items(spec.data, job.inputs, folder / "inputs", shard=spec.shard)
    encoder = _open(spec, job)
    texts = [item.text for item in items]
    how = spec.embedding.model_dump(exclude={"inline", "batch_size"})
    about = fingerprint(texts, job.inputs, spec.model.model_dump(), how)
    kept = VectorCache(folder / "vectors", encoder.dimension, about)
    before = kept.count
    with ItemControl(session, kept=kept.name) as heeding:
        report = ProgressReporter(session, len(texts), before, check_commands=heeding.heed).at
        vectors = encoded(kept, texts, _BATCHES_KEPT * spec.embedding.batch_size, encoder, report)
    file = folder / VECTORS
    _write(file, items, vectors)
    usage = {
        "texts": len(texts),
        "computed": len(texts) - before,
        "prompt_tokens": encoder.tokens,
        "truncated": encoder.cut,
        "latency_sec": round(time.monotonic() - began, 3),
    }
    result = _result(spec, encoder, items, vectors) | {"vectors": _about(file, vectors), "usage": usage}
    write_json(task.folder.responses_json, result, sync=True)
    # After the result: a relaunch before it resumes from these vectors.
    shutil.rmtree(folder / "vectors")


def _open(spec: EmbeddingTaskSpec, job: Job) -> Encoder:
    model = spec.model
    how = model.transformers
    loading = Loading()
    if how is not None:
        attention = "flash_attention_2" if how.use_flash_attention_2 else how.attn_implementation
        loading = Loading(how.dtype, attention, how.device_map)
    if spec.enforce_cpu:
        loading = Loading(loading.dtype, loading.attention, "cpu")
    weights = _weights(spec, job)
    return open_encoder(
        model.source.identifier,
        weights or job.inputs.get("model.source.identifier"),
        spec.embedding,
        revision=model.source.revision,
        trust_remote_code=model.trust_remote_code,
        loading=loading,
    )


def _weights(spec: EmbeddingTaskSpec, job: Job) -> str | None:
    """Return the folder of the weights that `checkpoint.load` names instead of the model's."""
    start = spec.start
    if start is None:
        return None
    found = job.inputs.get(spec.start_pointer) or job.inputs.get("checkpoint.load")
    if found is None:
        raise InputError(f"spec.{spec.start_pointer}: the weights are not on this worker.")
    root = Path(found) / start.subdir if start.subdir else Path(found)
    inner = [path for path in (root, *sorted(root.iterdir())) if (path / "config.json").is_file()]
    if not inner:
        raise InputError(
            f"spec.{spec.start_pointer}: no model found in {root.name}.",
            hint="A model is a folder with config.json; merge an adapter into its base with a `merge` task first.",
        )
    return str(inner[0])


def _write(file: Path, items: Sequence[Item], vectors: Vectors) -> None:
    """Write one row for each item, atomically."""
    width = vectors.shape[1]
    flat = pa.array(vectors.reshape(-1), type=pa.float32())
    columns: dict[str, Any] = {
        "index": pa.array(range(len(items)), type=pa.int64()),
        "text": pa.array([item.text for item in items], type=pa.string()),
        "vector": pa.FixedSizeListArray.from_arrays(flat, width),
    }
    noted = [item.metadata for item in items]
    if any(noted):
        columns["metadata"] = pa.array([_json(each) for each in noted], type=pa.string())
    part = file.with_name(f".{file.name}.partial")
    pq.write_table(pa.table(columns), part, compression="zstd")
    part.replace(file)


def _json(value: Any) -> str:
    import orjson

    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _about(file: Path, vectors: Vectors) -> dict[str, Any]:
    digest, size = hash_file(file)
    return {
        "path": file.name,
        "format": "parquet",
        "column": "vector",
        "dtype": "float32",
        "dimension": int(vectors.shape[1]),
        "count": int(vectors.shape[0]),
        "sha256": digest,
        "size_bytes": size,
    }


def _result(spec: EmbeddingTaskSpec, encoder: Encoder, items: Sequence[Item], vectors: Vectors) -> dict[str, Any]:
    inline = spec.embedding.inline if spec.embedding.inline is not None else len(items) <= _INLINE
    found = []
    for index, item in enumerate(items):
        each: dict[str, Any] = {"index": index, "dimension": encoder.dimension}
        if inline:
            each["embedding"] = vectors[index].tolist()
        if item.metadata:
            each["metadata"] = item.metadata
        found.append(each)
    return {
        "ok": True,
        "executor": "embedding",
        "model": spec.model.source.identifier,
        "library": encoder.model.library,
        "normalized": spec.embedding.normalize,
        "items": found,
    }
