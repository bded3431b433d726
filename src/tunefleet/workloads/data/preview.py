"""Training preview, before anything is trained: rendered rows, trained tokens, lengths.

    python -m tunefleet.workloads.data.preview FILE --json [--input data.artifact=PATH]

Reads the same rows and creates the same tokens as the training run, loads no weights, and prints one JSON object, which
the CLI formats. If a workflow file, dataset or model is invalid, it prints `{"error": …, "hint": …}`, with exit code 2.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import transformers
from transformers import PreTrainedTokenizerBase

from tunefleet.errors import InputError, SpecError, TunefleetError
from tunefleet.spec import TrainingTaskSpec, local_paths, parse_workflow
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.formats import Shape
from tunefleet.workloads.data.readers import Selection
from tunefleet.workloads.data.sources import open_portions
from tunefleet.workloads.data.tokenization import Encoder, Tokens, encode_all
from tunefleet.workloads.faults import INPUT_FAILED

_ROWS = 3
_BINS = 20
_MEASURED_ROWS = 10_000


def preview(
    spec: TrainingTaskSpec, root: Path, *, rows: int = _ROWS, given: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Describe the rows that a training run of a spec gets.

    Returns:
        `rows` (each with `pieces` of text and whether they are trained), `lengths` of all rows with a `histogram`, the
        shares of truncated and trained tokens, the shape of the rows, and `notes` on unused parts.

    Raises:
        InputError: If data or model cannot be used.
    """
    source = spec.data.source
    inputs = {p.pointer: str(root / Path(p.value).expanduser()) for p in local_paths(spec) if (root / p.value).exists()}
    inputs |= given or {}
    if source.kind == "artifact" and source.pointer not in inputs:
        raise InputError(
            f"The data {source.value!r} is on the server; a preview needs it on this machine.",
            hint=f"`tunefleet artifacts get {source.value}` downloads it; pass it with --input {source.pointer}=PATH.",
        )
    # Archives are unpacked into it.
    with tempfile.TemporaryDirectory(prefix="tunefleet-preview-") as workspace:
        data = spec.data
        if data.streaming:
            # A stream has no length; only the first rows are measured.
            few = min(data.max_samples or _MEASURED_ROWS, _MEASURED_ROWS)
            data = data.model_copy(update={"max_samples": few})
        portions = open_portions(data, inputs, Path(workspace), seed=spec.training.seed)
        model = base_model.locate_named(
            spec.model.source, inputs, Path(workspace), trust_remote_code=spec.model.trust_remote_code
        )
        tokenizer = base_model.load_tokenizer(model)
        limit = min(spec.training.max_seq_length, base_model.context_length(model) or spec.training.max_seq_length)
        encoder = Encoder(
            tokenizer,
            whole=spec.training.completion_only_loss is False,
            append_eos=spec.training.append_eos,
            vocabulary=base_model.embedding_rows(model),
        )
        description = described(portions.train.rows, portions.train.shape, tokenizer, encoder, limit, shown=rows)
    duplicates = portions.duplicates.sentence if portions.duplicates else None
    return {
        "model": spec.model.source.identifier,
        **description,
        "notes": [*description["notes"], *([duplicates] if duplicates else [])],
        "total_rows": len(portions.train.rows),
        "held_out_rows": len(portions.held_out.rows) if portions.held_out else 0,
    }


def described(
    rows: Iterable[Mapping[str, Any]],
    shape: Shape,
    tokenizer: PreTrainedTokenizerBase,
    encoder: Encoder,
    limit: int,
    *,
    shown: int = _ROWS,
) -> dict[str, Any]:
    """Describe rows as a training run gets them.

    Raises:
        DataError: If a row is invalid.
    """
    few = rows[:_MEASURED_ROWS] if isinstance(rows, Selection) else itertools.islice(rows, _MEASURED_ROWS)
    encoded = list(encode_all(few, shape, encoder))
    return {
        "dataset": shape.origin,
        "shape": shape.kind,
        "columns": list(shape.columns),
        "rows": [_row(tokenizer, row, limit) for row in encoded[:shown]],
        "notes": list(shape.notes.sentences),
        **_lengths(encoded, limit),
    }


def main(arguments: list[str] | None = None) -> int:
    """Print the preview of a workflow file; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--rows", type=int, default=_ROWS, help="rows to show")
    parser.add_argument("--input", action="append", default=[], type=_pair, help="POINTER=PATH: local path of an input")
    parser.add_argument("--task", help="task of the workflow file")
    parser.add_argument("--json", action="store_true", help="print JSON (the only form)")
    options = parser.parse_args(arguments)
    # Standard output must hold nothing but the JSON object.
    datasets.disable_progress_bars()
    transformers.utils.logging.set_verbosity_error()
    try:
        workflow = parse_workflow(options.file.read_text(encoding="utf-8"), filename=options.file.name)
        node = workflow.task(options.task)
        spec = node.spec
        if spec is None:
            raise InputError(f"{node.name} has references to other tasks, so its rows are not known yet.")
        if not isinstance(spec, TrainingTaskSpec):
            raise InputError(f"A preview shows supervised training (sft, lora_sft); {node.name} is of {node.kind}.")
        shown = preview(spec, options.file.resolve().parent, rows=options.rows, given=dict(options.input))
    except OSError as error:
        shown = {"error": f"{options.file} cannot be read: {error.strerror or error}.", "hint": None}
    except TunefleetError as error:
        faults = [str(fault) for fault in error.faults] if isinstance(error, SpecError) else []
        shown = {"error": error.message, "hint": error.hint, "faults": faults}
    # The only output: the caller parses it.
    print(json.dumps(shown))
    return INPUT_FAILED if "error" in shown else 0


def _pair(text: str) -> tuple[str, str]:
    pointer, equals, path = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not POINTER=PATH")
    return pointer, path


def _row(tokenizer: PreTrainedTokenizerBase, row: Tokens, limit: int) -> dict[str, Any]:
    """Split a row into pieces of text that are trained, masked, or cut off."""
    states = [
        ("cut" if position >= limit else "trained" if trained else "context", token)
        for position, (token, trained) in enumerate(zip(row.ids, row.trained, strict=True))
    ]
    pieces = []
    for state, run in itertools.groupby(states, key=lambda pair: pair[0]):
        ids = [token for _, token in run]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        pieces.append({"text": text, "trained": state == "trained", "cut": state == "cut", "tokens": len(ids)})
    return {"pieces": pieces, "tokens": len(row.ids), "trained_tokens": sum(row.trained[:limit])}


def _lengths(encoded: list[Tokens], limit: int) -> dict[str, Any]:
    lengths = np.array([len(row.ids) for row in encoded])
    trained_counts = np.array([sum(row.trained[:limit]) for row in encoded])
    counts, edges = np.histogram(lengths, bins=min(_BINS, max(int(np.ptp(lengths)), 1)))
    return {
        "max_seq_length": limit,
        "measured_rows": len(encoded),
        "lengths": {
            "shortest": int(lengths.min()),
            "median": float(np.median(lengths)),
            "p95": float(np.percentile(lengths, 95)),
            "longest": int(lengths.max()),
        },
        "histogram": {"edges": [round(float(edge), 1) for edge in edges], "counts": counts.tolist()},
        "truncated_share": float((lengths > limit).mean()),
        "nothing_to_learn_share": float((trained_counts == 0).mean()),
        "trained_share": float(trained_counts.sum() / np.minimum(lengths, limit).sum()),
    }


if __name__ == "__main__":
    sys.exit(main())
