"""Compares the evaluations of several tasks: metric by metric, and item by item if items are available.

Standard library only: it runs on the client's machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import Interval, IntervalOptions
from tunefleet.errors import ConflictError, InputError

Result = Mapping[str, Any]
Items = Callable[[str, str], Path | None]
"""Task and file name of its items → path; None if the items are not available."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a task from the first one in a metric.

    Args:
        value: Its value minus the first's; with `factor` its value divided by the first's.
        low: Lower end of the interval; None if unknown.
        high: Upper end.
        method: How the interval was computed.
        p: Probability of such a difference between equally good models; for items that are right or wrong only.
        verdict: `better`, `worse`, or `none`: no difference shown. Based on `p` if there is one, else on the interval.
        factor: Whether it is a factor, as for perplexities, the exponentials of losses; 1 is no difference.
    """

    value: float
    low: float | None
    high: float | None
    method: str
    p: float | None
    verdict: str
    factor: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A metric of all tasks.

    Args:
        higher_is_better: Whether more is better.
        comparable: Whether all tasks with the metric measured the same thing.
        values: Per task, as in its result; None if the task has not measured it.
        differences: From the first task; None for the first task itself, and if unknown.
    """

    metric: str
    higher_is_better: bool
    comparable: bool
    values: list[dict[str, Any] | None]
    differences: list[Difference | None]

    def as_json(self) -> dict[str, Any]:
        """Return the row as a JSON object."""
        return asdict(self)


def compare(results: Mapping[str, Result], items: Items, *, force: bool = False) -> list[Row]:
    """Compare evaluations with that of the first task.

    Args:
        results: Results by task id.
        items: Returns the items of a task.
        force: Also compare values that were measured differently.

    Raises:
        InputError: If a task has no metrics, or no two tasks have one in common.
        ConflictError: If two tasks measured different things under one name.
    """
    for task, result in results.items():
        if not isinstance(result.get("metrics"), Mapping) or "evaluations" not in result:
            raise InputError(
                f"{task} is not an evaluation.",
                hint="Compare evaluations with evaluations, or training runs with training runs.",
            )
    names = list(dict.fromkeys(name for result in results.values() for name in result["metrics"]))
    shared = [name for name in names if sum(name in result["metrics"] for result in results.values()) > 1]
    if len(results) > 1 and not shared:
        raise InputError("These runs have no metric in common.", hint=f"They have: {', '.join(names)}.")
    return [_row(name, results, items, force=force) for name in names]


def _row(name: str, results: Mapping[str, Result], items: Items, *, force: bool) -> Row:
    having = [task for task, result in results.items() if name in result["metrics"]]
    # Equal names are not enough: rows, settings and tokenizers may differ.
    marks = {task: _evaluation(results[task], name).get("fingerprint") for task in having}
    comparable = len(set(marks.values())) == 1
    if not comparable and not force:
        other = next(task for task in having if marks[task] != marks[having[0]])
        why = _unlike(name, results, having[0], other)
        raise ConflictError(
            f"{name} of {other} cannot be compared with that of {having[0]}: {why}.",
            hint="Evaluate both with the same settings, or use --force to show the numbers side by side anyway.",
        )
    first, *others = results
    values = [results[task]["metrics"].get(name) for task in results]
    better = bool(results[having[0]]["metrics"][name]["higher_is_better"])
    found: list[Difference | None] = [None]
    for task in others:
        both = first in having and task in having and comparable
        found.append(_difference(name, results, (first, task), items) if both else None)
    return Row(name, better, comparable, values, found)


def _evaluation(result: Result, name: str) -> Mapping[str, Any]:
    return next((each for each in result["evaluations"] if name in each["metrics"]), {})


def _unlike(name: str, results: Mapping[str, Result], one: str, other: str) -> str:
    left, right = (_evaluation(results[task], name) for task in (one, other))
    if left.get("type") != right.get("type"):
        return f"one is {left.get('type')}, the other {right.get('type')}"
    if left["data"].get("digest") != right["data"].get("digest"):
        return "the rows differ"
    if left.get("versions") != right.get("versions"):
        return "it was measured with different versions"
    if left.get("settings") != right.get("settings"):
        return "the settings differ"
    return (
        "the rows have different tokens, since the tokenizers differ"
        if left.get("type") == "loss"
        else "it was measured differently"
    )


def _difference(name: str, results: Mapping[str, Result], tasks: tuple[str, str], items: Items) -> Difference | None:
    metrics = [results[task]["metrics"][name] for task in tasks]
    value = metrics[1]["value"] - metrics[0]["value"]
    better = bool(metrics[0]["higher_is_better"])
    pairs = [_evaluation(results[task], name).get("pairs", {}).get(name) for task in tasks]
    rows = [_read(items(task, pair["file"]), pair) if pair else None for task, pair in zip(tasks, pairs, strict=True)]
    wanted = IntervalOptions(confidence=float(metrics[0].get("confidence") or 0.95))
    # Pairing needs the same items on both sides.
    if rows[0] is None or rows[1] is None or rows[0].keys() != rows[1].keys():
        return Difference(value, None, None, "no items to pair", None, "none")
    left, right = ([each[index] for index in sorted(each)] for each in rows if each is not None)
    value, interval = statistics.ratio_difference(left, right, wanted)
    p = _p(left, right)
    shown = _shown(interval) if p is None else p < 1 - wanted.confidence
    verdict = "none" if not shown else "better" if (value > 0) is better else "worse"
    exp = bool(pairs[0] and pairs[0].get("exp"))
    # The comparison is done on losses; perplexities are shown.
    if exp:
        value, interval = statistics.exp(value), statistics.exponent(interval, "loss")
    return Difference(value, interval.low, interval.high, interval.method, p, verdict, exp)


def _read(path: Path | None, pair: Mapping[str, Any]) -> dict[int, tuple[float, float]] | None:
    if path is None or not path.is_file():
        return None
    found = {}
    for line in path.read_bytes().splitlines():
        item = json.loads(line)
        weight = 1.0 if pair.get("weight") is None else float(item[pair["weight"]])
        found[int(item["index"])] = (float(item[pair["part"]]), weight)
    return found


def _p(left: Sequence[tuple[float, float]], right: Sequence[tuple[float, float]]) -> float | None:
    # McNemar's test applies to right and wrong items only.
    if any(part not in {0.0, 1.0} or weight != 1.0 for part, weight in (*left, *right)):
        return None
    return statistics.mcnemar([bool(part) for part, _ in left], [bool(part) for part, _ in right])


def _shown(interval: Interval) -> bool:
    return interval.low is not None and interval.high is not None and not interval.low <= 0 <= interval.high
