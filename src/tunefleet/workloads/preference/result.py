"""`responses.json` of a training on preferences or rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunefleet.schemas.job_folder import Job
from tunefleet.spec import AlignmentTaskSpec
from tunefleet.workloads.preference.method import Material
from tunefleet.workloads.training.report import Ended, contracted, throughput, used

Measures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome(Ended):
    """A training that has come to its end.

    Args:
        before: Measures of held-out rows before it; None if there are none.
    """

    material: Material
    before: Measures | None
    after: Measures | None


def build(job: Job, spec: AlignmentTaskSpec, outcome: Outcome) -> dict[str, Any]:
    """Put the result together; the first keys are those of the orchestrator's contract."""
    material, state = outcome.material, outcome.trainer.state
    logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
    return {
        **contracted(job, spec, outcome, material.counts.rows),
        "losses": {
            "train_first": logged[0] if logged else None,
            "train_last": logged[-1] if logged else None,
            "held_out_before": None if outcome.before is None else outcome.before["loss"],
            "held_out_after": None if outcome.after is None else outcome.after["loss"],
        },
        "held_out": _held_out(outcome),
        "tokens": {"seen": int(state.num_input_tokens_seen), "dataset": material.counts.tokens},
        "throughput": throughput(outcome),
        "data": {
            "dataset": material.origin,
            "rows": material.counts.rows,
            "dropped_rows": material.counts.dropped,
            "truncated_rows": material.counts.truncated,
            "held_out_rows": 0 if material.held_out is None else len(material.held_out),
            "duplicates": material.duplicates.rows if material.duplicates else None,
            "notes": list(material.notes),
        },
        "used": {**used(spec, outcome), "max_seq_length": material.max_length},
        "timings": outcome.seconds,
    }


def _held_out(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.before is None or outcome.after is None or outcome.material.held_out is None:
        return None
    return {"rows": len(outcome.material.held_out), "before": outcome.before, "after": outcome.after}
