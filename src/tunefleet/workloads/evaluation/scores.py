"""lm-eval results as metrics with intervals, and as item values for comparisons of two models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tunefleet.analysis.evaluation import statistics
from tunefleet.analysis.evaluation.statistics import Interval, IntervalOptions, Metric
from tunefleet.spec.tasks.evaluate_task import EvaluationSpec
from tunefleet.workloads.evaluation.summary import Pair

# Characters that the name of a metric or a file cannot have.
NO_NAME: Final = re.compile(r"[^A-Za-z0-9_]+")
# lm-eval's aggregations of log-likelihoods → divisor of their mean.
_LOSSES: Final = {"perplexity": 1.0, "weighted_perplexity": 1.0, "bits_per_byte": math.log(2)}
_EXPONENTS: Final = frozenset({"perplexity", "weighted_perplexity"})

# The stored result of one call of lm-eval.
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """A metric in lm-eval's notation: `acc,none`."""

    metric: str
    taken: str

    @classmethod
    def of(cls, text: str) -> Key:
        """Parse a key of an lm-eval result."""
        metric, _, taken = text.partition(",")
        return cls(metric, taken)

    @property
    def item(self) -> str:
        """The metric's name in an item."""
        return self.metric if self.taken == "none" else f"{self.metric}_{self.taken}"

    def label(self, task: str) -> str:
        """Return the metric's name in our result."""
        return NO_NAME.sub("_", f"{task}_{self.item}")


@dataclass(frozen=True, slots=True)
class Numbers:
    """Item values of a metric, which is the sum of the parts over the sum of the weights."""

    parts: list[float]
    weights: list[float] | None = None
    exp: bool = False

    @property
    def value(self) -> float:
        """The metric, computed from the items."""
        mean = math.fsum(self.parts) / (len(self.parts) if self.weights is None else math.fsum(self.weights))
        return statistics.exp(mean) if self.exp else mean

    def interval(self, wanted: IntervalOptions) -> Interval:
        """Return the interval of a loss."""
        found = statistics.ratio(self.parts, self.weights or [1.0] * len(self.parts), wanted)
        return statistics.exponent(found, "loss") if self.exp else found


def metrics(name: str, result: Result, wanted: IntervalOptions, evaluation: EvaluationSpec) -> dict[str, Metric]:
    """Return the metrics of a task; for a group its own metrics, else those of its tasks."""
    results: Mapping[str, Any] = result["results"]
    of = [name] if _values(results.get(name, {})) or not _below(name, result) else list(results)
    found = {}
    for task in of:
        better = (result.get("higher_is_better") or {}).get(task) or {}
        counts = (result.get("n-samples") or {}).get(task) or {}
        n = int(counts.get("effective") or len((result.get("samples") or {}).get(task) or ()))
        if not n:
            n = sum(int(each["effective"]) for each in (result.get("n-samples") or {}).values())
        for key, value in _values(results[task]).items():
            up = bool(better.get(key.metric, True))
            share = up and 0 <= value <= 1 and _in_shares(task, key, result)
            interval = _interval(task, key, value, result, wanted, share=share)
            unit = "share" if share else "1"
            label = evaluation.metric(key.label(task))
            found[label] = statistics.metric(value, interval, n, unit, better=up, wanted=wanted)
    return found


def pairs(result: Result, files: Mapping[str, str], evaluation: EvaluationSpec) -> dict[str, Pair]:
    """Return the item values of metrics that are a ratio of sums."""
    found = {}
    for task, file in files.items():
        for key, value in _values(result["results"].get(task, {})).items():
            numbers = _numbers(task, key, value, result)
            if numbers is None:
                continue
            loss = _loss_of(task, key, result) is not None
            weight = None if numbers.weights is None else f"{key.item}_weight"
            pair = Pair(file, f"{key.item}_loss" if loss else key.item, weight, numbers.exp)
            found[evaluation.metric(key.label(task))] = pair
    return found


def items(task: str, result: Result) -> Iterator[dict[str, Any]]:
    """Yield the values of each question of a task, in order."""
    lines: dict[int, dict[str, Any]] = {}
    for sample in result["samples"][task]:
        line = lines.setdefault(int(sample["doc_id"]), {"index": int(sample["doc_id"])})
        for metric in sample.get("metrics") or ():
            if metric not in sample:
                continue
            key = Key(metric, sample.get("filter", "none"))
            line[key.item] = sample[metric]
            how = _loss_of(task, key, result)
            loss = None if how is None else _read([sample[metric]], how)
            if loss is not None:
                line[f"{key.item}_loss"] = loss.parts[0]
                if loss.weights is not None:
                    line[f"{key.item}_weight"] = loss.weights[0]
        line["hash"] = sample.get("doc_hash")
    return (lines[index] for index in sorted(lines))


def _interval(task: str, key: Key, value: float, result: Result, wanted: IntervalOptions, *, share: bool) -> Interval:
    numbers = _numbers(task, key, value, result)
    if numbers is not None and _loss_of(task, key, result) is not None:
        return numbers.interval(wanted)
    # Wilson's interval is better than a standard error for a proportion.
    if numbers is not None and set(numbers.parts) <= {0.0, 1.0}:
        return statistics.wilson(round(math.fsum(numbers.parts)), len(numbers.parts), wanted)
    error = result["results"][task].get(f"{key.metric}_stderr,{key.taken}")
    error = float(error) if isinstance(error, int | float) else None
    return statistics.of_error(value, error, wanted, share=share)


def _numbers(task: str, key: Key, value: float, result: Result) -> Numbers | None:
    """Return the item values of a metric of a task, or of all tasks of a group; None if it is not made of them."""
    found = _read(_raw(task, key, result), _loss_of(task, key, result))
    if found is None or (found.weights is not None and not math.fsum(found.weights)):
        return None
    # The items must reproduce lm-eval's value, or they are not what it aggregated.
    return found if math.isclose(found.value, value, rel_tol=1e-6, abs_tol=1e-9) else None


def _raw(task: str, key: Key, result: Result) -> list[Any]:
    samples = result.get("samples") or {}
    leaves = [each for each in _below(task, result) if each in samples] or [task]
    return [
        sample.get(key.metric)
        for leaf in leaves
        for sample in samples.get(leaf) or ()
        if sample.get("filter", "none") == key.taken
    ]


def _read(values: Sequence[Any], how: str | None) -> Numbers | None:
    """Parse the item values of a metric; None if there are none, or they are not numbers."""
    weighted = bool(values) and how is not None and all(isinstance(each, list | tuple) for each in values)
    rows = [list(each) for each in values] if weighted else [[each] for each in values]
    width = 2 if weighted else 1
    if not rows or any(len(row) != width or not all(map(_is_number, row)) for row in rows):
        return None
    parts = [float(row[0]) for row in rows]
    if how is None:
        return Numbers(parts)
    losses = [-part / _LOSSES[how] for part in parts]
    return Numbers(losses, [float(row[1]) for row in rows] if weighted else None, how in _EXPONENTS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _loss_of(task: str, key: Key, result: Result) -> str | None:
    how = _aggregation(task, key, result)
    return how if how in _LOSSES else None


def _aggregation(task: str, key: Key, result: Result) -> str | None:
    found: str | None = ((result.get("aggregations") or {}).get(task) or {}).get(key.metric)
    return found


def _in_shares(task: str, key: Key, result: Result) -> bool:
    raw = _raw(task, key, result)
    if _aggregation(task, key, result) == "f1":
        return True
    return bool(raw) and all(_is_number(each) and 0 <= each <= 1 for each in raw)


def _below(name: str, result: Result) -> list[str]:
    """Return all tasks and groups below a group."""
    own = (result.get("group_subtasks") or {}).get(name) or ()
    return [*own, *(each for group in own for each in _below(group, result))]


def _values(result: Mapping[str, Any]) -> dict[Key, float]:
    return {
        Key.of(key): float(value)
        for key, value in result.items()
        if "," in key and "_stderr," not in key and isinstance(value, int | float) and not isinstance(value, bool)
    }
