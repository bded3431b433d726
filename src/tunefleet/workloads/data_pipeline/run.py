"""The program of a `data` task."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import DataError
from tunefleet.spec import DataTaskSpec
from tunefleet.spec.tasks.data_task import PreviewSpec
from tunefleet.trainer_control import JobSession
from tunefleet.trainer_control.files import write_json
from tunefleet.workloads.common import base_model
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.data.formats import choose
from tunefleet.workloads.data.preview import described
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.data_pipeline.conversion import Tokenizers
from tunefleet.workloads.data_pipeline.inputs import Source
from tunefleet.workloads.data_pipeline.pipeline import Count, Pipeline
from tunefleet.workloads.data_pipeline.row_types import Row
from tunefleet.workloads.data_pipeline.writer import write

# Folder for rows that wait for others; deleted at the end.
WORKSPACE: Final = "rows"
_REPORT_S: Final = 0.5
POINTER = "preview.model"


def main(folder: Path) -> None:
    """Build the dataset of a job.

    Raises:
        DataError: If rows cannot be read, a step fails on one, or none is left.
        MachineError: If a library of a step is missing.
    """
    task = open_task(folder, DataTaskSpec)
    workspace = folder / WORKSPACE
    workspace.mkdir(exist_ok=True)
    result = _made(task.spec, task.job.inputs, task.session, workspace)
    write_json(task.folder.responses_json, result, sync=True)
    # After the result: a relaunch before it continues from these files.
    shutil.rmtree(workspace, ignore_errors=True)


def open_pipeline(
    spec: DataTaskSpec, inputs: Mapping[str, str], workspace: Path, **how: Any
) -> tuple[Pipeline, list[Source]]:
    """Open the sources of a spec; return its pipeline with them."""
    sources = [Source(source, index, inputs, workspace) for index, source in enumerate(spec.sources)]
    named = {
        str(block.tokenizer): inputs[pointer]
        for index, step in enumerate(spec.steps)
        for word in ("filter", "convert")
        if (block := getattr(step, word)) is not None and (pointer := f"steps.{index}.{word}.tokenizer") in inputs
    }
    return Pipeline(spec, sources, workspace, tokenizers=Tokenizers(named), **how), sources


def _made(spec: DataTaskSpec, inputs: Mapping[str, str], session: JobSession, workspace: Path) -> dict[str, Any]:
    sentences: list[str] = []
    recognised = _ShapeReporter(session, sentences)
    pipeline, sources = open_pipeline(spec, inputs, workspace, say=recognised.say, tell=_ProgressReporter(session).tell)
    session.status.write(state="running", phase="preparing")
    if spec.preview is not None:
        origin = sources[0].name if len(sources) == 1 else "the data"
        shown = previewed(spec.preview, pipeline.run()["train"], origin, inputs, workspace)
        counts = [count.as_json() for count in pipeline.counts]
        return {"ok": True, "preview": shown, "steps": counts, "recognised": sentences}
    files = []
    for name, rows in pipeline.run().items():
        target = session.folder / f"{name}.{spec.format}"
        files.append(write(rows, target, spec.format))
    first = files[0]
    # A single shard may be left without rows: the other shards have the rest.
    if first["rows"] == 0 and spec.shard is None:
        raise _nothing_read(pipeline.counts)
    steps = [count.as_json() for count in pipeline.counts]
    for count in steps:
        session.journal.event("data.counted", _sentence(count), data=count)
    result: dict[str, Any] = {
        "ok": True,
        "rows": sum(each["rows"] for each in files),
        "bad_rows": sum(count["bad"] for count in steps),
        "files": files,
        "steps": steps,
        "recognised": sentences,
        # Summed over the shards of a sharded task.
        "usage": {
            "rows_read": sum(count["rows_in"] for count in steps if count["step"] == "read"),
            "rows_written": sum(each["rows"] for each in files),
            "bad_rows": sum(count["bad"] for count in steps),
        },
    }
    if spec.format == "jsonl":
        fields = list(_columns(session.folder / first["name"]))
        result["jsonl_export"] = {"path": first["name"], "record_count": first["rows"], "fields": fields}
    return result


def _nothing_read(counts: Sequence[Count]) -> DataError:
    bad = sum(count.bad for count in counts if count.step == 0)
    if bad:
        return DataError(
            f"No row is left: none of the {bad:,} rows of the sources could be read.",
            hint="Remove `on_bad: drop` to see the error of the first one.",
        )
    return DataError("No row is left: the sources have none.", hint="Check the paths and splits of the sources.")


def _columns(path: Path) -> dict[str, None]:
    """Return the columns of the first rows of a file, in order."""
    with path.open("rb") as lines:
        return {name: None for line in itertools.islice(lines, 100) for name in orjson.loads(line)}


def _sentence(count: Mapping[str, Any]) -> str:
    of = f" of {count['source']}" if count.get("source") else ""
    bad = f", {count['bad']:,} bad rows skipped" if count["bad"] else ""
    return f"{count['step']}{of}: {count['rows_in']:,} rows in, {count['rows_out']:,} out{bad}."


class _ShapeReporter:
    """Reports the recognised shapes in the task's history and its result."""

    def __init__(self, session: JobSession, sentences: list[str]) -> None:
        self._session = session
        self._sentences = sentences

    def say(self, sentence: str) -> None:
        if sentence not in self._sentences:
            self._sentences.append(sentence)
            self._session.journal.event("data.recognised", sentence)


class _ProgressReporter:
    """Reports progress a few times a second at most; a new phase is reported immediately."""

    def __init__(self, session: JobSession) -> None:
        self._session = session
        self._reported_at = 0.0
        self._phase = ""

    def tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if phase != self._phase or now - self._reported_at >= _REPORT_S:
            self._reported_at, self._phase = now, phase
            self._session.status.update(phase=phase, values={"rows": done})
            self._session.journal.progress(phase, step=done, max_steps=total)


def previewed(
    spec: PreviewSpec, rows: Iterable[Row], origin: str, inputs: Mapping[str, str], workspace: Path
) -> dict[str, Any]:
    """Describe rows as a training run gets them."""
    given = iter(row.values for row in rows)
    first = next(given, None)
    if first is None:
        raise DataError(f"{origin} has no rows.", hint="Check the paths and splits of the sources.")
    local = inputs.get(POINTER)
    folder = None if local is None else str(only_folder(unpacked_path(Path(local), workspace)))
    model = base_model.locate(spec.model, folder)
    limit = min(spec.max_seq_length, base_model.context_length(model) or spec.max_seq_length)
    tokenizer = base_model.load_tokenizer(model)
    whole, vocabulary = spec.completion_only_loss is False, base_model.embedding_rows(model)
    encoder = Encoder(tokenizer, whole=whole, vocabulary=vocabulary)
    shape = choose(spec.shape, first, origin)
    description = described(itertools.chain([first], given), shape, tokenizer, encoder, limit, shown=spec.rows)
    return {"model": spec.model, **description}
