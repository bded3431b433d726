"""Checks of `sweep` against its workflow: every value must be valid, and the objective must be measured."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

from tunefleet.errors import Fault, SpecError
from tunefleet.spec.documents.fault_messages import fault_at
from tunefleet.spec.documents.nodes import TaskNode
from tunefleet.spec.documents.overrides import deep_set
from tunefleet.spec.documents.paths import local_paths
from tunefleet.spec.documents.typed import read_spec
from tunefleet.spec.options.sweep import EVAL_LOSS, MAX_TRIALS, PrunerSpec, RangeSpec, SweepSpec
from tunefleet.spec.text import Path, Source
from tunefleet.validation_errors import show

_AT: Final[Path] = ("sweep",)
_PARAMETERS: Final[Path] = (*_AT, "parameters")
# These decide where a run goes, not how good its model is.
_FIXED: Final = ("taskType", "spec", "metadata", "stages", "graph", "federation", "engine")


def sweep_faults(source: Source, sweep: SweepSpec, tasks: Sequence[TaskNode]) -> Iterator[Fault]:
    """Yield the errors of a sweep in a workflow that is valid without it.

    Args:
        source: The workflow file.
        tasks: Its tasks; a sweep needs exactly one.
    """
    if len(tasks) != 1 or tasks[0].spec is None:
        hint = "use the workflow file of a single task without references"
        yield fault_at(_AT, f"needs a workflow with one task, not {len(tasks)}", source, hint=hint, key=True)
        return
    task = tasks[0]
    for path, parameter in sweep.parameters.items():
        yield from _parameter_faults(source, sweep, task, path, parameter)
    if sweep.sampler == "grid" and sweep.trials is None and _countable(sweep) and sweep.combinations > MAX_TRIALS:
        hint = f"at most {MAX_TRIALS:,} are allowed: set trials, or use fewer values"
        yield fault_at(_PARAMETERS, f"has {sweep.combinations:,} combinations", source, hint=hint, key=True)
    yield from _objective_faults(source, sweep, task)


def _countable(sweep: SweepSpec) -> bool:
    return all(not isinstance(each, RangeSpec) or each.count is not None for each in sweep.parameters.values())


def _parameter_faults(source: Source, sweep: SweepSpec, task: TaskNode, path: str, parameter: Any) -> Iterator[Fault]:
    at = (*_PARAMETERS, path)
    if path.split(".", maxsplit=1)[0] in _FIXED:
        hint = "name a key below spec, such as training.learning_rate"
        yield fault_at(at, "cannot vary between trials", source, hint=hint, key=True)
        return
    if isinstance(parameter, RangeSpec):
        grid = sweep.sampler == "grid"
        if grid and parameter.count is None:
            hint = "add count: 4, or write a list"
            yield fault_at(at, "needs count with sampler: grid", source, hint=hint, key=True)
        elif not grid and parameter.count is not None:
            hint = "leave it out, or write sampler: grid"
            yield fault_at((*at, "count"), f"has no effect with sampler: {sweep.sampler}", source, hint=hint, key=True)
        values: Sequence[tuple[Path, Any]] = [((*at, "min"), parameter.min), ((*at, "max"), parameter.max)]
    else:
        values = [((*at, number), each) for number, each in enumerate(parameter)]
    for where, value in values:
        fault = _value_fault(source, task, path, value, where)
        if fault is not None:
            yield fault
            return


def _value_fault(source: Source, task: TaskNode, path: str, value: Any, at: Path) -> Fault | None:
    """Return what is wrong with the task if one of its keys has another value."""
    raw = copy.deepcopy(task.raw)
    try:
        deep_set(raw, path, value)
    except SpecError as error:
        return fault_at(at, error.faults[0].message, source, hint=error.faults[0].hint, key=True)
    found: list[Fault] = []
    read_spec(Source({"spec": raw}), found)
    if found:
        key = found[0].path.removeprefix("spec.")
        text = found[0].message if key == path else f"with the value {show(value)}, {key} {found[0].message}"
        return fault_at(at, text, source, hint=found[0].hint)
    if any(each.pointer == path and (each.required or each.looks_local) and not each.elsewhere
           for each in local_paths(raw)):  # fmt: skip
        hint = "upload each with `tunefleet data push`, and list the names of the artifacts"
        return fault_at(at, f"is a local path, {show(value)}, which trials cannot upload", source, hint=hint)
    return None


def _objective_faults(source: Source, sweep: SweepSpec, task: TaskNode) -> Iterator[Fault]:
    training: Any = getattr(task.spec, "training", None)
    evaluated = sweep.objective.metric.startswith("eval_") and training is not None
    data = task.raw.get("data")
    if sweep.objective.metric == EVAL_LOSS and evaluated and not (isinstance(data, dict) and data.get("eval")):
        at = (*_AT, "objective") if sweep.objective.model_fields_set else _AT
        hint = "add data.eval, such as {split: test}, or name another metric"
        yield fault_at(at, "eval_loss is not measured: the run has no eval data", source, hint=hint, key=True)
    if sweep.pruner is None:
        return
    at = (*_AT, "pruner")
    if evaluated and training.eval_strategy == "no":
        hint = "add training.eval_strategy: steps and eval_steps"
        yield fault_at(at, "needs evaluations during training", source, hint=hint, key=True)
    elif sweep.pruner.name == "hyperband" and evaluations(sweep.pruner, task.spec) is None:
        hint = "set it to the number of evaluations of a complete run"
        yield fault_at(at, "needs max_evaluations, since training.max_steps is not set", source, hint=hint, key=True)


def evaluations(pruner: PrunerSpec, spec: Any) -> int | None:
    """Return the number of evaluations of a complete run; None if it is not known in advance."""
    training = getattr(spec, "training", None)
    if pruner.max_evaluations is not None:
        return pruner.max_evaluations
    if training is None or not training.max_steps or training.eval_strategy != "steps":
        return None
    return max(1, int(training.max_steps) // int(training.evaluation_steps))
