"""A run from start to end: rows → tokens → model → eval before → training → eval after → delivery.

It may be killed at any moment and started again on the same folder: it then resumes from the newest valid checkpoint
and keeps the evaluation that an earlier launch made before training.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tunefleet import fsutil
from tunefleet.schemas.job_folder import Job
from tunefleet.spec import AlignmentTaskSpec
from tunefleet.workloads.common import base_model
from tunefleet.workloads.data.sources import open_rows
from tunefleet.workloads.data.tokenization import Encoder
from tunefleet.workloads.distributed import ranks
from tunefleet.workloads.preference.dpo import DpoMethod, OrpoMethod, RewardMethod
from tunefleet.workloads.preference.grpo import GrpoMethod, RlooMethod
from tunefleet.workloads.preference.kto import KtoMethod
from tunefleet.workloads.preference.method import FOLDER, ExactEvalTrainer, Method, TrainingData
from tunefleet.workloads.training import participation, setup
from tunefleet.workloads.training.dataset import report_notes
from tunefleet.workloads.training.launch import Launch
from tunefleet.workloads.training.model import assembly
from tunefleet.workloads.training.report import FinishedRun, contract_keys, effective_settings, throughput
from tunefleet.workloads.training.setup import require_disk

_METHODS: dict[str, type[Method[Any]]] = {
    "dpo": DpoMethod,
    "kto": KtoMethod,
    "orpo": OrpoMethod,
    "reward": RewardMethod,
    "grpo": GrpoMethod,
    "rloo": RlooMethod,
}
Aligned = Launch[AlignmentTaskSpec]


def run(folder: Path) -> None:
    """Run the training task of a job folder.

    Raises:
        InputError: If data, model, reward or options cannot be used.
        MachineError: If this machine lacks something the spec requires.
    """
    launch = setup.open_training(folder, AlignmentTaskSpec)
    _train(launch, _METHODS[launch.spec.task_type](launch))


def _train(launch: Aligned, method: Method[Any]) -> None:
    spec, clock, session = launch.spec, launch.clock, launch.session
    hardware_setup = setup.detect_hardware(launch, liger=False, load=method.load)
    with clock.part("data"), ranks.leader_first(launch.folder, launch.job.launch, "data"):
        found = open_rows(spec.data, launch.job.inputs, launch.workspace, method.columns, seed=spec.training.seed)
        launch, own = participation.shard_rows(launch, found.train, found.origin)
        found, spec = replace(found, train=own), launch.spec
        method = _METHODS[spec.task_type](launch)
    with clock.part("model"), ranks.leader_first(launch.folder, launch.job.launch, "model"):
        base = assembly.locate_base(spec, launch.job.inputs, launch.workspace)
        tokenizer = base_model.load_tokenizer(base.source)
    with clock.part("tokenizing"):
        context = base_model.context_length(base.source)
        vocabulary = base_model.embedding_rows(base.source)
        encoder = Encoder(tokenizer, append_eos=getattr(spec.training, "append_eos", True), vocabulary=vocabulary)
        training_data = method.tokenize(found, encoder, _longest(launch, context))
        training_data = replace(training_data, duplicates=found.duplicates)
        _report_data(launch, training_data)
    hardware_setup.memory.report_estimate(base.source, hardware_setup.kernels, training_data.max_length, launch.journal)
    with clock.part("model"):
        trainer = method.build(base, tokenizer, training_data, hardware_setup)
    if session.leads:
        require_disk(launch.folder, trainer, adapter=spec.adapter is not None, make_room=lambda: False)
    before, after = setup.train_between(
        launch,
        trainer,
        lambda step, when: _measure(launch, method, trainer, step, when),
        lambda: _baseline(launch, method, trainer),
    )
    with clock.part("saving"):
        delivered = setup.deliver(launch, trainer, tokenizer)
    machine, kernels = hardware_setup.machine, hardware_setup.kernels
    resume = str(session.resume.path) if session.resume else None
    outcome = Outcome(trainer, machine, kernels, resume, delivered, clock.seconds(), training_data, before, after)
    setup.write_result(launch, hardware_setup.memory, build(launch.job, spec, outcome))
    # Kept until the result is written, for relaunches.
    if session.leads:
        shutil.rmtree(launch.folder.root / FOLDER, ignore_errors=True)


def _longest(launch: Aligned, context: int | None) -> int:
    wanted = launch.spec.training.max_seq_length
    if context is None or context >= wanted:
        return wanted
    launch.journal.event("data.context", f"Rows are truncated to {context} tokens, the context length of the model.")
    return context


def _report_data(launch: Aligned, training_data: TrainingData) -> None:
    counts, limit = training_data.counts, training_data.max_length
    total = counts.rows + counts.dropped
    for count, what in ((counts.truncated, "truncated"), (counts.dropped, "skipped")):
        if count:
            text = f"{count} of {total} rows are {what} (max sequence length: {limit})."
            launch.journal.event("data.truncated", text, "warning")
    report_notes(launch.journal, training_data.notes, training_data.duplicates)
    data = {"rows": counts.rows, "tokens": counts.tokens}
    launch.journal.event("data.ready", f"{counts.rows} rows, {counts.tokens} tokens.", data=data)


def _baseline(launch: Aligned, method: Method[Any], trainer: ExactEvalTrainer) -> Measures | None:
    """Evaluate the untrained model, or read the evaluation of an earlier launch."""
    if launch.baseline.exists():
        kept: Measures | None = json.loads(launch.baseline.read_bytes())
        return kept
    measured = _measure(launch, method, trainer, 0, "before")
    if launch.session.leads:
        fsutil.write_file(launch.baseline, json.dumps(measured).encode())
    return measured


def _measure(launch: Aligned, method: Method[Any], trainer: ExactEvalTrainer, step: int, when: str) -> Measures | None:
    if trainer.eval_dataset is None:
        return None
    measured = trainer.evaluate_rows(method.measures)
    launch.journal.metric(step, {f"held_out_{name}": value for name, value in measured.items()})
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in measured.items())
    launch.journal.event(f"evaluation.{when}", f"Eval {when} training: {metrics}.")
    return measured


Measures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Outcome(FinishedRun):
    """A finished training run.

    Args:
        before: Eval metrics before training; None without eval rows.
    """

    training_data: TrainingData
    before: Measures | None
    after: Measures | None


def build(job: Job, spec: AlignmentTaskSpec, outcome: Outcome) -> dict[str, Any]:
    """Build the result; the first keys are those of the orchestrator's contract."""
    training_data, state = outcome.training_data, outcome.trainer.state
    logged = [entry["loss"] for entry in state.log_history if "loss" in entry]
    return {
        **contract_keys(job, spec, outcome, training_data.counts.rows),
        "losses": {
            "train_first": logged[0] if logged else None,
            "train_last": logged[-1] if logged else None,
            "held_out_before": None if outcome.before is None else outcome.before["loss"],
            "held_out_after": None if outcome.after is None else outcome.after["loss"],
        },
        "held_out": _held_out(outcome),
        "tokens": {"seen": int(state.num_input_tokens_seen), "dataset": training_data.counts.tokens},
        "throughput": throughput(outcome),
        "data": {
            "dataset": training_data.origin,
            "rows": training_data.counts.rows,
            "dropped_rows": training_data.counts.dropped,
            "truncated_rows": training_data.counts.truncated,
            "held_out_rows": 0 if training_data.held_out is None else len(training_data.held_out),
            "duplicates": training_data.duplicates.rows if training_data.duplicates else None,
            "notes": list(training_data.notes),
        },
        "used": {**effective_settings(spec, outcome), "max_seq_length": training_data.max_length},
        "timings": outcome.seconds,
    }


def _held_out(outcome: Outcome) -> dict[str, Any] | None:
    if outcome.before is None or outcome.after is None or outcome.training_data.held_out is None:
        return None
    return {"rows": len(outcome.training_data.held_out), "before": outcome.before, "after": outcome.after}
