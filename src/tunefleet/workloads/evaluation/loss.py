"""Loss and perplexity on rows: the exact mean over all trained tokens, with a confidence interval."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import IntervalOptions, Metric
from tunefleet.errors import DataError
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.data.tokenization import IGNORED, Clipped, Encoder, clip, encode_all
from tunefleet.workloads.evaluation.items import RowSet
from tunefleet.workloads.evaluation.launch import Item, ItemLog, Progress
from tunefleet.workloads.evaluation.model_under_test import EvaluatedModel

UNIT: Final = "nats per token"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Tokenized rows."""

    rows: list[tuple[int, Clipped]]
    dropped: int
    truncated: int
    max_length: int
    digest: str


def prepare(evaluation: EvaluationSpec, rows: RowSet, subject: EvaluatedModel) -> Prepared:
    """Tokenize the rows as a training run does.

    Raises:
        DataError: If a row is invalid, or none has a trained token.
    """
    max_length = min(evaluation.max_seq_length, subject.context or evaluation.max_seq_length)
    whole = evaluation.completion_only_loss is False
    encoder = Encoder(subject.tokenizer, whole=whole, vocabulary=subject.vocabulary)
    digest = hashlib.sha256()
    kept: list[tuple[int, Clipped]] = []
    dropped = truncated = 0
    shape = rows.portion.shape
    for index, row in enumerate(encode_all(rows.portion.rows, shape, encoder)):
        truncated += len(row.ids) > max_length
        cut = clip(row, max_length)
        if cut is None:
            dropped += 1
            continue
        # Of tokens and labels, so that another tokenizer or mask gives another fingerprint.
        digest.update(np.ascontiguousarray(cut.ids).tobytes() + np.ascontiguousarray(cut.labels).tobytes())
        kept.append((index, cut))
    if not kept:
        raise DataError(
            f"No row of {shape.origin} has a trained token within {max_length} tokens.",
            hint="Raise the evaluation's max_seq_length.",
        )
    return Prepared(kept, dropped, truncated, max_length, digest.hexdigest())


def measure(prepared: Prepared, batch_size: int, subject: EvaluatedModel, kept: ItemLog, progress: Progress) -> None:
    """Measure the remaining rows."""
    progress.start(len(prepared.rows), len(kept))
    for batch in _batches(prepared.rows, batch_size):
        # An unfinished batch is repeated completely: the other rows of a batch affect a row's last digits.
        if all(index in kept for index, _ in batch):
            continue
        kept.add(_losses(batch, subject))
        progress.tell(len(kept))


def metrics(kept: ItemLog, wanted: IntervalOptions) -> dict[str, Metric]:
    """Return loss and perplexity over all rows."""
    items = list(kept)
    parts, weights = [item["loss_sum"] for item in items], [float(item["tokens"]) for item in items]
    value = math.fsum(parts) / math.fsum(weights)
    interval = statistics.ratio(parts, weights, wanted)
    grown, n = statistics.exponent(interval, "loss"), len(items)
    return {
        "loss": statistics.metric(value, interval, n, UNIT, better=False, wanted=wanted),
        "perplexity": statistics.metric(statistics.exp(value), grown, n, "1", better=False, wanted=wanted),
    }


def _batches(rows: list[tuple[int, Clipped]], size: int) -> Iterator[list[tuple[int, Clipped]]]:
    """Split rows into batches of similar lengths, the longest first, so that an out-of-memory error comes early."""
    ordered = sorted(rows, key=lambda row: (-len(row[1].ids), row[0]))
    return (ordered[start : start + size] for start in range(0, len(ordered), size))


@torch.inference_mode()
def _losses(batch: list[tuple[int, Clipped]], subject: EvaluatedModel) -> list[Item]:
    model: Any = subject.model()
    pad = subject.tokenizer.pad_token_id
    longest = len(batch[0][1].ids)
    ids = torch.full((len(batch), longest), pad, dtype=torch.long)
    mask = torch.zeros((len(batch), longest), dtype=torch.long)
    for place, (_, row) in enumerate(batch):
        ids[place, : len(row.ids)] = torch.from_numpy(row.ids)
        mask[place, : len(row.ids)] = 1
    logits = model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False).logits
    found = []
    for place, (index, row) in enumerate(batch):
        # Shifted: the logits at a position predict the next token.
        labels = torch.from_numpy(row.labels[1:]).to(logits.device)
        counted = labels != IGNORED
        # One row at a time in float32: all rows together would double the memory of the logits.
        scores = logits[place, : len(labels)][counted].float()
        total = torch.nn.functional.cross_entropy(scores, labels[counted], reduction="sum")
        found.append({"index": index, "loss_sum": float(total), "tokens": int(counted.sum())})
    return found
