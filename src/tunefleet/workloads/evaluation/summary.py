"""`responses.json` of an evaluation: metrics with intervals, and what exactly was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson
import torch
import transformers

from tunefleet.analysis.evaluation.statistics import Metric
from tunefleet.errors import InputError
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import EvaluateTaskSpec
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec, GateSpec
from tunefleet.workloads.evaluation.items import RowSet
from tunefleet.workloads.evaluation.loss import Prepared
from tunefleet.workloads.evaluation.model_under_test import EvaluatedModel

# Increase it when the same settings measure something else.
VERSION: Final = 1
# The same for the extraction of answers.
_MATCHING: Final = 2
# The same for the scorers of suites.
_SCORING: Final = 1


@dataclass(frozen=True, slots=True)
class Pair:
    """Item values of a metric: the sum of a part over the sum of a weight."""

    file: str
    part: str
    weight: str | None = None
    exp: bool = False


@dataclass(slots=True)
class Measured:
    """A finished evaluation.

    Args:
        items: Name of a part → file with the values of each row, below the job folder.
        pairs: Metric → its item values, if it has any: two models are compared item by item.
    """

    evaluation: EvaluationSpec
    fingerprint: str
    metrics: dict[str, Metric]
    data: dict[str, Any]
    items: dict[str, str]
    pairs: dict[str, Pair] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation as the result lists it."""
        settings = self.evaluation.model_dump(mode="json", exclude_unset=True, exclude={"name", "type", "data"})
        return {
            "name": self.evaluation.label,
            "type": self.evaluation.type,
            "fingerprint": self.fingerprint,
            "metrics": sorted(self.metrics),
            "data": self.data,
            "settings": settings,
            "items": self.items,
            "pairs": {name: asdict(pair) for name, pair in self.pairs.items()},
            "versions": self.versions,
            "seconds": self.seconds,
        }


def build(job: Job, spec: EvaluateTaskSpec, subject: EvaluatedModel, measured: list[Measured]) -> dict[str, Any]:
    """Build the result."""
    metrics = {name: metric.as_json() for each in measured for name, metric in each.metrics.items()}
    start = spec.start
    gates = [_gate_result(index, gate, metrics) for index, gate in enumerate(spec.gates)]
    return {
        "ok": True,
        "task_id": job.task_id,
        "model_name": spec.model.source.identifier,
        "checkpoint": None if start is None else start.task or start.place or start.url,
        "adapters": [each.name for each in subject.engine_model.adapters],
        "metrics": metrics,
        "passed": all(gate["passed"] for gate in gates) if gates else None,
        "gates": gates,
        "fingerprint": _joint_digest(each.fingerprint for each in measured),
        "evaluations": [each.as_json() for each in measured],
        "device": "cuda" if torch.cuda.is_available() and not spec.enforce_cpu else "cpu",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def _gate_result(index: int, gate: GateSpec, metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    # Metric names of lm-eval are known only after the run.
    if gate.metric not in metrics:
        raise InputError(
            f"spec.gates.{index}.metric: {gate.metric} is not measured.", hint=f"Choose {', '.join(sorted(metrics))}."
        )
    measured = metrics[gate.metric][gate.use]
    enough = measured is not None and (gate.at_least is None or measured >= gate.at_least)
    passed = enough and (gate.at_most is None or measured <= gate.at_most)
    return {**gate.model_dump(mode="json", exclude_none=True), "measured": measured, "passed": passed}


def digest_of(what: Mapping[str, Any]) -> str:
    """Return the digest of settings."""
    return hashlib.sha256(orjson.dumps({**what, "version": VERSION}, option=orjson.OPT_SORT_KEYS)).hexdigest()


def loss_digest(prepared: Prepared) -> str:
    """Return the digest of a loss: the exact tokens and labels, so another tokenizer is another measure."""
    return digest_of({"type": "loss", "tokens": prepared.digest})


def accuracy_digest(evaluation: EvaluationSpec, rows: RowSet) -> str:
    """Return the digest of accuracy: rows, sampling and matching; the chat template belongs to the model."""
    asked = evaluation.generation.model_dump(mode="json")
    match = evaluation.match.model_dump(mode="json")
    templated = evaluation.apply_chat_template
    how = {"generation": asked, "match": match, "matching": _MATCHING, "chat": templated}
    return digest_of({"type": "exact_match", "rows": rows.digest, **how})


def suite_digest(evaluation: EvaluationSpec, rows: RowSet) -> str:
    """Return the digest of a suite: rows, sampling and scorers; the chat template belongs to the model."""
    asked = evaluation.generation.model_dump(mode="json")
    scorers = [each.model_dump(mode="json") for each in evaluation.scorers or ()]
    how = {"generation": asked, "scorers": scorers, "scoring": _SCORING, "chat": evaluation.apply_chat_template}
    return digest_of({"type": "suite", "rows": rows.digest, **how})


def _joint_digest(marks: Iterable[str]) -> str:
    """Return the digest of several digests, independent of their order."""
    # Sorted, so that the order of evaluations in the spec does not matter.
    return digest_of({"evaluations": sorted(marks)})
