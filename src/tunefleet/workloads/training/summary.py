"""`responses.json` of a supervised run: settings, data, losses and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tunefleet.schemas.job_folder import Job
from tunefleet.spec import EvaluateSpec, TrainingTaskSpec
from tunefleet.spec.options.answer_match import ExactMatchSpec
from tunefleet.workloads.training.dataset import TrainingData
from tunefleet.workloads.training.report import FinishedRun, contract_keys, effective_settings, throughput
from tunefleet.workloads.training.samples import Answer, right


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation: eval loss in nats per token, and answers to eval prompts."""

    loss: float | None
    answers: list[Answer]


@dataclass(frozen=True, slots=True)
class Outcome(FinishedRun):
    """A finished supervised run."""

    training_data: TrainingData
    before: Evaluation
    after: Evaluation


def build(job: Job, spec: TrainingTaskSpec, outcome: Outcome) -> dict[str, Any]:
    """Build the result; the first keys are those of the orchestrator's contract."""
    training_data, args = outcome.training_data, outcome.trainer.args
    train = training_data.train
    return {
        **contract_keys(job, spec, outcome, train.rows if train else None),
        "losses": _losses(outcome),
        "held_out": _held_out(outcome, spec.evaluate),
        "tokens": {
            "seen": int(outcome.trainer.state.num_input_tokens_seen),
            "dataset": train.tokens if train else None,
            "dataset_trained": train.trained_tokens if train else None,
        },
        "throughput": throughput(outcome),
        "data": _data(training_data),
        "used": {
            **effective_settings(spec, outcome),
            "packing": args.packing,
            "padding_free": args.padding_free,
            "max_seq_length": training_data.max_length,
        },
        "timings": outcome.seconds,
    }


def _losses(outcome: Outcome) -> dict[str, float | None]:
    history = outcome.trainer.state.log_history
    logged = [entry["loss"] for entry in history if "loss" in entry]
    evaluated = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    if outcome.after.loss is not None:
        evaluated.append(outcome.after.loss)
    return {
        "train_first": logged[0] if logged else None,
        "train_last": logged[-1] if logged else None,
        "held_out_before": outcome.before.loss,
        "held_out_after": outcome.after.loss,
        "held_out_best": min(evaluated, default=None),
    }


def _held_out(outcome: Outcome, wanted: EvaluateSpec) -> dict[str, Any] | None:
    held_out, before, after = outcome.training_data.held_out, outcome.before, outcome.after
    if held_out is None or before.loss is None or after.loss is None:
        return None
    return {
        "rows": held_out.rows,
        "tokens": held_out.trained_tokens,
        "unit": "nats per token",
        "loss_before": before.loss,
        "loss_after": after.loss,
        "fall": before.loss - after.loss,
        "exact_match": _exact_match(before, after, wanted.exact_match),
        "answers": [
            {"prompt": late.prompt, "before": early.output, "after": late.output, "reference": late.reference}
            for early, late in list(zip(before.answers, after.answers, strict=True))[: wanted.answers]
        ],
    }


def _exact_match(before: Evaluation, after: Evaluation, match: ExactMatchSpec | None) -> dict[str, Any] | None:
    if match is None:
        return None
    early, late = right(before.answers, match), right(after.answers, match)
    return {"rows": len(late), "before": sum(early) / len(early), "after": sum(late) / len(late)}


def _data(training_data: TrainingData) -> dict[str, Any]:
    train, packed = training_data.train, training_data.packed
    return {
        "dataset": training_data.origin,
        "shape": training_data.shape,
        "rows": train.rows if train else None,
        "dropped_rows": train.dropped if train else None,
        "truncated_rows": train.truncated if train else None,
        "streaming": training_data.stream is not None,
        "held_out_rows": training_data.held_out.rows if training_data.held_out else 0,
        "duplicates": training_data.duplicates.rows if training_data.duplicates else None,
        "notes": list(training_data.notes),
        "packed_sequences": packed.sequences if packed else None,
        "packed_filled": round(packed.filled, 4) if packed else None,
    }
