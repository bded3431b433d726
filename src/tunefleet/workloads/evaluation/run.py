"""The program of an evaluation: weights → rows → items → metrics with intervals → result.

May be killed at any time and relaunched in the same folder: finished items are not computed again.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tunefleet.fsutil import write_file
from tunefleet.spec import EvaluateTaskSpec
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.common import job as library_logging
from tunefleet.workloads.common.item_control import ItemControl
from tunefleet.workloads.common.job import open_task
from tunefleet.workloads.evaluation import items, loss, summary
from tunefleet.workloads.evaluation.launch import PHASE, WORK, ItemLog, Progress, Run
from tunefleet.workloads.evaluation.model_under_test import EvaluatedModel
from tunefleet.workloads.evaluation.summary import Measured
from tunefleet.workloads.inference.engines import engine_model

logger = logging.getLogger(__name__)


def run(folder: Path) -> None:
    """Run the evaluation of a job folder.

    Raises:
        InputError: If model, rows or options cannot be used.
        MachineError: If this machine lacks a requirement of the spec.
    """
    task = open_task(folder, EvaluateTaskSpec)
    job, spec, session = task.job, task.spec, task.session
    library_logging.quiet_libraries()
    session.status.write(state="running", phase=PHASE)
    subject = EvaluatedModel(engine_model(spec, job.inputs, task.workspace, "transformers"))
    with ItemControl(session, kept=WORK) as heeding:
        this = Run(job, spec, task.folder, session, subject, Progress(session, heeding.heed))
        measured = [_measured(this, index, each) for index, each in enumerate(spec.evaluations)]
    # After the loop: gates refer to the metrics of all evaluations.
    report = summary.build(job, spec, this.subject, measured)
    write_file(task.folder.responses_json, json.dumps(report, indent=1).encode())


def _measured(this: Run, index: int, evaluation: EvaluationSpec) -> Measured:
    started = time.monotonic()
    measured = _KINDS[evaluation.type](this, index, evaluation)
    measured.seconds = round(time.monotonic() - started, 3)
    names = {name: metric.value for name, metric in measured.metrics.items()}
    journal = this.session.journal
    journal.metric(index + 1, names, series="evaluation")
    summary_text = ", ".join(f"{name} {value:.4g}" for name, value in names.items())
    journal.event("evaluation.finished", f"{evaluation.label}: {summary_text}.", data={"metrics": names})
    return measured


def _loss(this: Run, index: int, evaluation: EvaluationSpec) -> Measured:
    found = items.read(evaluation, index, this.job.inputs, this.workspace)
    prepared = loss.prepare(evaluation, found, this.subject)
    mark = summary.loss_digest(prepared)
    kept = this.kept(evaluation.label, mark)
    loss.measure(prepared, evaluation.batch_size, this.subject, kept, this.progress)
    kept.deliver(this.items(evaluation.label))
    data = {
        "rows": len(prepared.rows), "dropped_rows": prepared.dropped, "truncated_rows": prepared.truncated,
        "tokens": sum(item["tokens"] for item in kept), "max_length": prepared.max_length,
    }  # fmt: skip
    return _made(this, evaluation, mark, found, kept, loss.metrics(kept, this.wanted), data)


def _exact(this: Run, index: int, evaluation: EvaluationSpec) -> Measured:
    # Imports an engine, which a loss evaluation does not need.
    from tunefleet.workloads.evaluation import accuracy

    found = items.read(evaluation, index, this.job.inputs, this.workspace)
    questions = accuracy.prepare(evaluation, found)
    mark = summary.accuracy_digest(evaluation, found)
    kept = this.kept(evaluation.label, mark)
    accuracy.answer(evaluation, questions, this.subject, kept, this.progress, accuracy.matching(evaluation))
    kept.deliver(this.items(evaluation.label))
    cut = sum(item["finish_reason"] == "length" for item in kept)
    empty = sum(item["found"] is None for item in kept)
    data = {"rows": len(questions), "answers_cut": cut, "answers_without": empty}
    return _made(this, evaluation, mark, found, kept, accuracy.metrics(kept, this.wanted), data)


def _suite(this: Run, index: int, evaluation: EvaluationSpec) -> Measured:
    # Imports an engine, which a loss evaluation does not need.
    from tunefleet.workloads.evaluation import accuracy, suite

    found = items.read(evaluation, index, this.job.inputs, this.workspace)
    questions = accuracy.questions_of(evaluation, found)
    score = suite.prepare(evaluation, index, questions, found.portion.shape.origin)
    mark = summary.suite_digest(evaluation, found)
    kept = this.kept(evaluation.label, mark)
    accuracy.answer(evaluation, questions, this.subject, kept, this.progress, score)
    kept.deliver(this.items(evaluation.label))
    cut = sum(item["finish_reason"] == "length" for item in kept)
    data = {"rows": len(questions), "answers_cut": cut}
    return _made(this, evaluation, mark, found, kept, suite.metrics(evaluation, kept, this.wanted), data)


def _made(
    this: Run,
    evaluation: EvaluationSpec,
    mark: str,
    found: items.RowSet,
    kept: ItemLog,
    metrics: dict[str, Any],
    data: dict[str, Any],
) -> Measured:
    kept.close()
    shape = found.portion.shape
    about: dict[str, Any] = {"dataset": shape.origin, "shape": shape.kind, "digest": found.digest}
    about["notes"] = list(shape.notes.sentences)
    file = str(this.items(evaluation.label).relative_to(this.folder.root))
    named = {evaluation.metric(name): metric for name, metric in metrics.items()}
    made = [summary.Pair(file, "right")]
    if evaluation.scorers is not None:
        made = [summary.Pair(file, each.label) for each in evaluation.scorers]
    if evaluation.type == "loss":
        made = [summary.Pair(file, "loss_sum", "tokens", exp=exp) for exp in (False, True)]
    pairs = dict(zip(evaluation.metrics, made, strict=True))
    return Measured(evaluation, mark, named, {**about, **data}, {evaluation.label: file}, pairs)


def _harness(this: Run, index: int, evaluation: EvaluationSpec) -> Measured:
    # Imports lm-eval, which other evaluations do not need.
    from tunefleet.workloads.evaluation import lm_eval

    return lm_eval.measure(this, index, evaluation)


_KINDS: Final[dict[str, Callable[[Run, int, EvaluationSpec], Measured]]] = {
    "loss": _loss,
    "exact_match": _exact,
    "suite": _suite,
    "lm_eval": _harness,
}
