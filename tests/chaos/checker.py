"""Proves from a stored history that a fleet has kept its promises, or names each fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos import check_jobs, check_results, check_series
from tests.chaos.history import History
from tests.chaos.index import Index
from tests.chaos.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Fault:
    """A promise that was not kept.

    Args:
        promise: Which: `results`, `series`, `acknowledged`, `at rest` or `secrets`.
        what: What is wrong, in words that name the thing.
    """

    promise: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


def check(history: History, ledger: Ledger, *, whole: bool = True) -> list[Fault]:
    """Return every fault of a history; none if the promises were kept.

    Args:
        history: What was stored.
        ledger: What clients were told.
        whole: Whether all work has ended, and not what the ledger knows of alone.
    """
    index = Index(history)
    if not whole:
        return _of_the_ledger(index, ledger)
    found = [Fault("results", what) for what in check_results.results(index, ledger)]
    found += [Fault("results", what) for what in check_jobs.federations(index)]
    found += [Fault("results", what) for what in check_jobs.campaigns(index)]
    found += [Fault("series", what) for what in check_series.series(index, ledger)]
    found += [Fault("acknowledged", what) for what in acknowledged(index, ledger)]
    found += [Fault("secrets", what) for what in history.secrets]
    return found + [Fault("at rest", what) for what in at_rest(index)]


def _of_the_ledger(index: Index, ledger: Ledger) -> list[Fault]:
    mine = {task for told in ledger.all("workflow") for task in told.facts["tasks"]}
    there = index.tasks
    index.tasks = {id_: row for id_, row in there.items() if id_ in mine}
    found = [Fault("results", what) for what in check_results.results(index, ledger)]
    found += [Fault("series", what) for what in check_series.series(index, ledger)]
    index.tasks = there
    return found + [Fault("acknowledged", what) for what in acknowledged(index, ledger)]


def acknowledged(index: Index, ledger: Ledger) -> Iterator[str]:
    """Yield each write that a client was told of and that is not there."""
    flows = {row["id"]: row for row in index.rows.workflows}
    for told in ledger.all("workflow"):
        if told.id not in flows:
            yield f"workflow {told.id} ({told.facts['key']}) is not there"
        for task_id in told.facts["tasks"]:
            if told.id in flows and task_id not in index.tasks:
                yield f"task {task_id} of workflow {told.id} is not there"
    keys = [row["idempotency_key"] for row in index.rows.workflows if row["idempotency_key"]]
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        yield f"the workflow with the key {key} is there {keys.count(key)} times"
    digests = {row["artifact_id"]: row["digest"] for row in index.rows.artifact_files}
    for told in ledger.all("artifact"):
        sent = told.facts["sha256"]
        if digests.get(told.id) != sent or index.history.digests.get(sent) != sent:
            yield f"artifact {told.id} is not there as it was sent"
    commands = {row["id"]: row for row in index.rows.commands}
    for told in ledger.all("command"):
        if told.id not in commands:
            yield f"command {told.id} is not there"
    for told in ledger.all("cancel"):
        task = index.tasks.get(told.id)
        if task is not None and task["status"] not in {"cancelled", "completed", "failed"}:
            yield f"task {told.id} was cancelled and is {task['status']}"
    for what, kind in (("pause", "task.pausing"), ("resume", "task.resumed")):
        for told in ledger.all(what):
            if not any(event["kind"] == kind for event in index.events[told.id]):
                yield f"the {what} of task {told.id} has left no event"
    names = {row["name"] for row in index.rows.campaigns}
    for told in ledger.all("campaign"):
        if told.id not in names:
            yield f"campaign {told.id} is not there"


def at_rest(index: Index) -> Iterator[str]:
    """Yield whatever is held, under way or left over, although nothing is to be done."""
    history, rows = index.history, index.rows
    for row in rows.attempts:
        if row["state"] in {"offered", "accepted"}:
            yield f"attempt {row['id']} of {row['task_id']} is {row['state']} by {row['worker_id']}"
    for row in rows.commands:
        if row["state"] in {"pending", "acknowledged", "applied"}:
            yield f"command {row['command']} ({row['id']}) of {row['task_id']} is {row['state']}"
    for row in rows.arriving_files:
        yield f"file {row['name']} of attempt {row['attempt_id']} is still arriving"
    for row in rows.federation_rounds:
        if row["holder"] is not None:
            yield f"round {row['number']} of federation {row['federation_seq']} is held by {row['holder']}"
    for row in rows.workflows:
        if row["open_tasks"] or row["status"] == "running":
            yield f"workflow {row['id']} is {row['status']} with {row['open_tasks']} open tasks"
    yield from history.left
    yield from history.deaths
