"""The preview of a `data` task: what a training would learn of the rows, in its result instead of in files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import DataError
from tunefleet.spec.tasks.data_preview import PreviewSpec
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.formats import choose
from tunefleet.workloads.data.preview import described
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.data_pipeline.row_types import Row

POINTER = "preview.model"


def previewed(
    spec: PreviewSpec, rows: Iterable[Row], origin: str, inputs: Mapping[str, str], workspace: Path
) -> dict[str, Any]:
    """Describe rows as a training would see them.

    Args:
        spec: The task's `preview`.
        rows: What the steps have made.
        origin: What messages call them.
        inputs: For each pointer into the spec, the local path that stands for it.
        workspace: Where archives may be unpacked.

    Raises:
        DataError: If there is no row, or one cannot be used.
        ModelError: If the model has no tokenizer that can be used.
    """
    given = iter(row.values for row in rows)
    first = next(given, None)
    if first is None:
        raise DataError(f"{origin} has no rows.", hint="Look at the paths and splits of sources.")
    local = inputs.get(POINTER)
    folder = None if local is None else str(only_folder(unpacked_path(Path(local), workspace)))
    model = base_model.locate(spec.model, folder)
    limit = min(spec.max_seq_length, base_model.context_length(model) or spec.max_seq_length)
    tokenizer = base_model.load_tokenizer(model)
    whole, vocabulary = spec.completion_only_loss is False, base_model.embedding_rows(model)
    encoder = Encoder(tokenizer, whole=whole, vocabulary=vocabulary)
    shape = choose(spec.shape, first, origin)
    told = described(itertools.chain([first], given), shape, tokenizer, encoder, limit, shown=spec.rows)
    return {"model": spec.model, **told}
