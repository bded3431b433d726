"""What an evaluation measured, as a digest: two values are comparable where theirs are equal."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.evaluation.items import RowSet
from tunefleet.workloads.evaluation.loss import Prepared

# Goes up when the same settings would measure something else.
VERSION: Final = 1
# The same, of what is taken out of an answer.
_MATCHING: Final = 2


def of(what: Mapping[str, Any]) -> str:
    """Return the digest of settings."""
    return hashlib.sha256(orjson.dumps({**what, "version": VERSION}, option=orjson.OPT_SORT_KEYS)).hexdigest()


def of_loss(prepared: Prepared) -> str:
    """Return that of a loss: the very tokens, and which of them count, so another tokenizer is another measure."""
    return of({"type": "loss", "tokens": prepared.digest})


def of_exact(evaluation: EvaluationSpec, rows: RowSet) -> str:
    """Return that of answers: the rows, how is drawn and what is compared; the chat template is the model's own."""
    asked = evaluation.generation.model_dump(mode="json")
    match = evaluation.match.model_dump(mode="json")
    templated = evaluation.apply_chat_template
    how = {"generation": asked, "match": match, "matching": _MATCHING, "chat": templated}
    return of({"type": "exact_match", "rows": rows.digest, **how})


def together(marks: Iterable[str]) -> str:
    """Return the digest of several, whatever their order."""
    return of({"evaluations": sorted(marks)})
