"""Series have no gap and no double, and what machines have written down has arrived."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.chaos.history import Row
from tests.chaos.index import Index
from tests.chaos.ledger import Ledger


def series(index: Index, ledger: Ledger) -> Iterator[str]:
    """Yield each gap and each double in what was reported."""
    for task_id in index.tasks:
        yield from _single(index, task_id)
        yield from _journals(index, task_id)
        yield from _log(index, task_id)
    for told in ledger.all("workflow"):
        for task_id in told.facts["tasks"]:
            task = index.tasks.get(task_id)
            if task is None or task["status"] != "completed":
                continue
            if told.facts["expects"] == "trained":
                yield from _tiled(index, task, told.facts["steps"])
            if told.facts["expects"] == "federated":
                for part in index.parts(task):
                    yield from _tiled(index, part, told.facts["steps"])
            if told.facts["expects"] == "counted":
                yield from _lines(index, task, told.facts["lines"])


def _single(index: Index, task_id: str) -> Iterator[str]:
    """See that no value is shown twice for a step, whatever the launches."""
    shown = Counter(
        (row["series"], row["step"], row["window_from"])
        for row in index.visible(task_id)
        if row["window_to"] is not None
    )
    for (name, step, _), count in sorted(shown.items()):
        if count > 1:
            yield f"series {name} of task {task_id} has step {step} {count} times"


def _tiled(index: Index, task: Row, steps: int) -> Iterator[str]:
    """See that the windows of the training's series cover each step once."""
    # An agent's point has no window: it tells of one step.
    windows = [
        (row["step"], row["step"]) if row["window_to"] is None else (row["window_from"], row["window_to"])
        for row in index.visible(task["id"])
        if row["series"] == "train" and '"loss"' in row["values_json"]
    ]
    covered = Counter(step for begin, end in windows for step in range(begin, end + 1))
    missing = [step for step in range(1, steps + 1) if not covered[step]]
    twice = [step for step, count in sorted(covered.items()) if count > 1]
    beyond = [step for step in sorted(covered) if step > steps]
    for what, which in (("lacks", missing), ("has twice", twice), ("has, beyond its end,", beyond)):
        if which:
            yield f"the series of task {task['id']} ({task['name']}) {what} steps {which}"


def _journals(index: Index, task_id: str) -> Iterator[str]:
    """See that the launch which brought the result was delivered to its last record, each record once."""
    task = index.tasks[task_id]
    launches = {row["launch"]: row for row in index.launches[task_id]}
    last = max(launches.values(), key=lambda row: row["number"], default=None)
    for row in launches.values():
        numbers = [point["seq"] for point in index.points[task_id] if point["launch_number"] == row["number"]]
        if numbers and max(numbers) >= row["cursor"]:
            yield f"launch {row['launch']} of task {task_id} has a point beyond its cursor {row['cursor']}"
    if task["status"] != "completed" or last is None:
        return
    for journal in index.history.journals:
        if journal.launch == last["launch"] and journal.records != last["cursor"]:
            yield (
                f"launch {journal.launch} of task {task_id} has {journal.records} records on {journal.machine}, "
                f"and {last['cursor']} have arrived"
            )


def _log(index: Index, task_id: str) -> Iterator[str]:
    """See that a log has no hole: each piece ends where its bytes say."""
    end = 0
    for row in sorted(index.chunks[task_id], key=lambda row: row["end"]):
        end += len(bytes(row["data"]))
        if row["end"] != end:
            yield f"the log of task {task_id} has a hole or a double before byte {row['end']}"
            end = row["end"]


def _lines(index: Index, task: Row, lines: int) -> Iterator[str]:
    """See that the last attempt's lines are all there, once and in order."""
    text = index.log(task["id"]).decode(errors="replace")
    numbers = [int(line.split()[1]) for line in text.splitlines() if line.startswith("line ")]
    last = numbers[len(numbers) - 1 - numbers[::-1].index(1) :] if 1 in numbers else []
    if last != list(range(1, lines + 1)):
        yield f"the log of task {task['id']} ({task['name']}) ends with lines {last}"
