"""Digest of what an evaluation measured: two values are comparable if their digests are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.evaluation.items import RowSet
from tunefleet.workloads.evaluation.loss import Prepared

# Increase it when the same settings measure something else.
VERSION: Final = 1
# The same for the extraction of answers.
_MATCHING: Final = 2


def of(what: Mapping[str, Any]) -> str:
    """Return the digest of settings."""
    return hashlib.sha256(orjson.dumps({**what, "version": VERSION}, option=orjson.OPT_SORT_KEYS)).hexdigest()


def of_loss(prepared: Prepared) -> str:
    """Return the digest of a loss: the exact tokens and labels, so another tokenizer is another measure."""
    return of({"type": "loss", "tokens": prepared.digest})


def of_exact(evaluation: EvaluationSpec, rows: RowSet) -> str:
    """Return the digest of accuracy: rows, sampling and matching; the chat template belongs to the model."""
    asked = evaluation.generation.model_dump(mode="json")
    match = evaluation.match.model_dump(mode="json")
    templated = evaluation.apply_chat_template
    how = {"generation": asked, "match": match, "matching": _MATCHING, "chat": templated}
    return of({"type": "exact_match", "rows": rows.digest, **how})


def together(marks: Iterable[str]) -> str:
    """Return the digest of several digests, independent of their order."""
    # Sorted, so that the order of evaluations in the spec does not matter.
    return of({"evaluations": sorted(marks)})
