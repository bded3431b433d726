"""A sweep as an Optuna study, built from its stored trials.

The database has all that Optuna needs of a trial, so that there is no second store to keep consistent with it: a study
lives for one call, and a restarted server continues with the same trials. Pure; call it in a thread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from tunefleet.db.repositories.sweeps import TrialRow
from tunefleet.errors import MachineError, install_command
from tunefleet.lifecycle.sweep import TrialState
from tunefleet.spec.options.sweep import RangeSpec, SweepSpec

if TYPE_CHECKING:
    import optuna

_FEWEST: Final = 4
"""Complete trials before importances say anything."""


class Suggestion(NamedTuple):
    """A new trial.

    Args:
        parameters: Path below `spec` → value.
        attributes: What the sampler keeps of the trial.
    """

    number: int
    parameters: dict[str, Any]
    attributes: dict[str, Any]


def require_optuna() -> None:
    """Raise if the server cannot run sweeps.

    Raises:
        MachineError: If Optuna is not installed.
    """
    if find_spec("optuna") is None:
        raise MachineError(
            "Sweeps need Optuna, which is not installed on the server.",
            hint=f"Run `{install_command('sweeps')}` on the server.",
        )


def evaluations_of(row: TrialRow) -> list[tuple[int, float]]:
    """Return step and value of a trial's evaluations, in step order; NaN if a value is not finite."""
    return [(step, math.nan if value is None else value) for step, value in orjson.loads(row.evaluations)]


def suggest(spec: SweepSpec, rows: Sequence[TrialRow]) -> Suggestion:
    """Return the values of the next trial."""
    study, distributions = _study(spec, rows), _distributions(spec)
    trial = study.ask(distributions)
    parameters = {path: _decoded(spec, path, value) for path, value in trial.params.items()}
    attributes = study._storage.get_trial_system_attrs(trial._trial_id)
    return Suggestion(trial.number, parameters, dict(attributes))


def judge(
    spec: SweepSpec, rows: Sequence[TrialRow], number: int, new: Sequence[float], max_evaluations: int | None
) -> tuple[bool, dict[str, Any]]:
    """Report a trial's new evaluations to the pruner.

    Args:
        number: The trial's number; `rows` do not have its new evaluations yet.
        new: Values of the objective.
        max_evaluations: Evaluations of a complete run, if known.

    Returns:
        Whether to stop the trial, and what the pruner keeps of it.
    """
    import optuna  # noqa: PLC0415 -- a second, and most servers have no sweep

    study = _study(spec, rows, max_evaluations)
    trial = optuna.trial.Trial(study, study.get_trials(deepcopy=False)[number]._trial_id)
    known = len(evaluations_of(rows[number]))
    prune = False
    for position, value in enumerate(new, known + 1):
        trial.report(value, position)
        prune = trial.should_prune() or prune
    return prune, dict(study._storage.get_trial_system_attrs(trial._trial_id))


def importances(spec: SweepSpec, rows: Sequence[TrialRow]) -> dict[str, float]:
    """Return how much each parameter matters for the objective, as shares of 1; empty with too few trials.

    By PED-ANOVA (Watanabe et al., 2023), which needs no model of the objective.
    """
    import optuna  # noqa: PLC0415 -- as above

    finished = [row for row in rows if row.state == TrialState.COMPLETED and row.value is not None]
    varied = {
        path for path in spec.parameters if len({str(orjson.loads(row.parameters)[path]) for row in finished}) > 1
    }
    if len(finished) < _FEWEST or not varied or len({row.value for row in finished}) == 1:
        return {}
    found = optuna.importance.get_param_importances(
        _study(spec, rows), evaluator=optuna.importance.PedAnovaImportanceEvaluator(), params=sorted(varied)
    )
    return {path: float(value) for path, value in found.items() if math.isfinite(value)}


def _study(spec: SweepSpec, rows: Sequence[TrialRow], max_evaluations: int | None = None) -> optuna.Study:
    import optuna  # noqa: PLC0415 -- as above

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        # Hyperband assigns its brackets by the name.
        study_name="sweep",
        direction="minimize" if spec.objective.minimized else "maximize",
        sampler=_sampler(spec, len(rows)),
        pruner=_pruner(spec, max_evaluations),
    )
    distributions = _distributions(spec)
    for row in rows:
        study.add_trial(_frozen(spec, row, distributions))
    return study


def _frozen(spec: SweepSpec, row: TrialRow, distributions: dict[str, Any]) -> optuna.trial.FrozenTrial:
    import optuna  # noqa: PLC0415 -- as above

    states = {
        TrialState.COMPLETED: optuna.trial.TrialState.COMPLETE,
        TrialState.PRUNED: optuna.trial.TrialState.PRUNED,
        TrialState.STOPPED: optuna.trial.TrialState.PRUNED,
        TrialState.FAILED: optuna.trial.TrialState.FAIL,
        TrialState.DIVERGED: optuna.trial.TrialState.FAIL,
        TrialState.CANCELLED: optuna.trial.TrialState.FAIL,
    }
    state = states.get(TrialState(row.state), optuna.trial.TrialState.RUNNING)
    parameters: Mapping[str, Any] = orjson.loads(row.parameters)
    return optuna.trial.create_trial(
        state=state,
        value=row.value if state is optuna.trial.TrialState.COMPLETE else None,
        params={path: value if _choices(spec, path) is None else _encoded(value) for path, value in parameters.items()},
        distributions=distributions,
        system_attrs=orjson.loads(row.attributes),
        intermediate_values={at: value for at, (_, value) in enumerate(evaluations_of(row), 1)},
    )


def _sampler(spec: SweepSpec, trials: int) -> optuna.samplers.BaseSampler:
    from optuna import samplers  # noqa: PLC0415 -- as above

    # Another seed for each trial: a study is built again for each, and must not repeat the first values.
    seed = (spec.seed * 1_000_003 + trials) % 2**32
    if spec.sampler == "grid":
        # The seed of a grid is part of its identity: one for all trials.
        return samplers.GridSampler({path: _choices(spec, path) or [] for path in spec.parameters}, seed=spec.seed)
    if spec.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed)


def _pruner(spec: SweepSpec, max_evaluations: int | None) -> optuna.pruners.BasePruner:
    from optuna import pruners  # noqa: PLC0415 -- as above

    options = spec.pruner
    if options is None:
        return pruners.NopPruner()
    first, factor = options.min_evaluations or 1, options.reduction_factor or 3
    if options.name == "median":
        startup = 5 if options.startup_trials is None else options.startup_trials
        return pruners.MedianPruner(n_startup_trials=startup, n_warmup_steps=first - 1)
    if options.name == "asha":
        return pruners.SuccessiveHalvingPruner(min_resource=first, reduction_factor=factor)
    # A number: with "auto" nothing is pruned before the first trial is complete.
    return pruners.HyperbandPruner(
        min_resource=first, max_resource=max(first, max_evaluations or first), reduction_factor=factor
    )


def _distributions(spec: SweepSpec) -> dict[str, Any]:
    from optuna import distributions  # noqa: PLC0415 -- as above

    found: dict[str, Any] = {}
    for path, each in spec.parameters.items():
        choices = _choices(spec, path)
        if choices is not None:
            found[path] = distributions.CategoricalDistribution(choices)
            continue
        assert isinstance(each, RangeSpec), "it has no choices"
        if each.integer:
            found[path] = distributions.IntDistribution(int(each.min), int(each.max), log=each.log)
        else:
            found[path] = distributions.FloatDistribution(each.min, each.max, log=each.log)
    return found


def _choices(spec: SweepSpec, path: str) -> list[str] | None:
    """Return the choices of a parameter; None if it has a range that is not a grid."""
    # As JSON: Optuna takes no lists and mappings, and would take 1 and true as equal.
    each = spec.parameters[path]
    if isinstance(each, RangeSpec):
        return [_encoded(value) for value in each.grid()] if spec.sampler == "grid" else None
    return [_encoded(value) for value in each]


def _encoded(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _decoded(spec: SweepSpec, path: str, value: Any) -> Any:
    if _choices(spec, path) is not None:
        return orjson.loads(value)
    each = spec.parameters[path]
    assert isinstance(each, RangeSpec), "it has no choices"
    # Six digits are enough for every setting, and easier to read than seventeen; still within the range.
    return min(max(float(f"{value:.6g}"), each.min), each.max) if isinstance(value, float) else value
