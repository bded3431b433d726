"""No result is lost, and none is doubled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tests.chaos.history import Row, told
from tests.chaos.index import Index
from tests.chaos.ledger import Ledger

ENDS: Final = {"completed", "failed", "cancelled", "skipped"}
PARTS: Final = 2
"""Workers of each federated training."""
_MOVES: Final = {
    None: {"pending", "queued"},
    "pending": {"queued", "running", "skipped", "failed", "cancelled"},
    "queued": {"dispatched", "failed", "cancelled"},
    "dispatched": {"queued", "running", "failed", "cancelled"},
    "running": {"queued", "paused", "completed", "failed", "cancelled"},
    "paused": {"queued", "failed", "cancelled"},
}
"""Written down once more, and not taken from the lifecycle: what is checked must not be what checks."""


def results(index: Index, ledger: Ledger) -> Iterator[str]:
    """Yield each result that is lost, doubled, or not what was asked for."""
    for task in index.tasks.values():
        yield from _one_end(index, task)
        yield from _one_attempt(index, task)
        yield from _files(index, task)
    for each in ledger.all("workflow"):
        for task_id in each.facts["tasks"]:
            if task_id in index.tasks:
                yield from _as_asked(index, index.tasks[task_id], each.facts, ledger)


def _one_end(index: Index, task: Row) -> Iterator[str]:
    """Follow the events of a task from its first to its last status."""
    status: str | None = None
    for event in sorted(index.events[task["id"]], key=lambda row: row["id"]):
        said = (told(event, "data") or {}).get("status")
        if said is None or not event["kind"].startswith("task."):
            continue
        if said not in _MOVES.get(status, set()):
            yield f"task {task['id']} went from {status} to {said} (event {event['id']})"
        status = said
    if task["status"] not in ENDS:
        yield f"task {task['id']} ({task['name']}) is lost: it is {task['status']} ({task['reason']})"
    elif status != task["status"]:
        yield f"task {task['id']} is {task['status']}, but its events end with {status}"


def _one_attempt(index: Index, task: Row) -> Iterator[str]:
    """See that one attempt has brought the result, and that each has a number of its own."""
    own = [row for row in index.attempts[task["id"]] if row["gang_of"] in {None, row["id"]}]
    ended = [row for row in own if row["state"] == "finished" and row["reason"] in {"finished", "stopped_early"}]
    if len(ended) > 1:
        yield f"task {task['id']} ({task['name']}) was finished by {len(ended)} attempts"
    split = any(event["kind"] == "task.running" for event in index.events[task["id"]])
    if task["status"] == "completed" and not ended and not split:
        yield f"task {task['id']} ({task['name']}) is completed, and no attempt has finished it"
    if task["status"] == "completed" and index.documents[task["seq"]]["result"] is None:
        yield f"the result of task {task['id']} ({task['name']}) is not there"


def _files(index: Index, task: Row) -> Iterator[str]:
    """See that each file of a task is stored once, whole."""
    made = [(row["name"], row["kind"]) for row in index.artifacts[task["id"]] if row["kind"] != "checkpoint"]
    for name, kind in sorted({each for each in made if made.count(each) > 1}):
        yield f"task {task['id']} has {made.count((name, kind))} artifacts called {name}"
    for artifact in index.artifacts[task["id"]]:
        for file in index.files[artifact["id"]]:
            kept = index.history.digests.get(file["digest"])
            if kept is None:
                yield f"file {file['path']} of artifact {artifact['id']} of task {task['id']} is lost"
            elif kept != file["digest"]:
                yield f"file {file['path']} of artifact {artifact['id']} of task {task['id']} is not what was stored"


def _as_asked(index: Index, task: Row, facts: Mapping[str, Any], ledger: Ledger) -> Iterator[str]:
    expects = facts["expects"]
    cancelled = task["id"] in {each.id for each in ledger.all("cancel")}
    if task["status"] != ("cancelled" if cancelled else "completed"):
        if not told_of_a_full_disk(index, task, facts["tasks"]):
            yield (
                f"task {task['id']} ({task['name']}, {facts['key']}) is {task['status']} "
                f"({task['reason']}: {task['error']})"
            )
        return
    if cancelled:
        return
    result = (told(index.documents[task["seq"]], "result") or {}).get("result") or {}
    if expects in {"items", "chain"} and [each.get("output") for each in result.get("items", [])] != [facts["key"]]:
        yield f"the result of task {task['id']} ({task['name']}) is another's: {result}"
    if expects == "trained":
        yield from _trained(index, task, facts["steps"])
    # Its parts are tasks of the same workflow, and come along with it.
    if expects == "federated" and task["name"] == facts["key"]:
        parts = index.parts(task)
        if len(parts) != PARTS:
            yield f"task {task['id']} ({task['name']}) has {len(parts)} parts"
        for part in parts:
            yield from _trained(index, part, facts["steps"])
    if expects == "counted":
        yield from _counted(index, task, facts)


def _trained(index: Index, task: Row, steps: int) -> Iterator[str]:
    """See that a training, or one part of it, has made all its steps and left its adapter."""
    result = (told(index.documents[task["seq"]], "result") or {}).get("result") or {}
    # An agent's result names none; its series does.
    if result.get("steps", steps) != steps:
        yield f"task {task['id']} ({task['name']}) has trained {result.get('steps')} steps"
    if "final_lora" not in {row["name"] for row in index.artifacts[task["id"]]}:
        yield f"the adapter of task {task['id']} ({task['name']}) is lost"


def _counted(index: Index, task: Row, facts: Mapping[str, Any]) -> Iterator[str]:
    """See that work was begun anew only where an attempt had ended without a result."""
    ran = index.history.marks.get(facts["file"], [])
    spent = [row for row in index.attempts[task["id"]] if row["accepted_at"] is not None]
    if "end" not in ran:
        yield f"task {task['id']} ({task['name']}) is completed, and has never run to its end"
    if ran.count("begin") > len(spent):
        yield f"task {task['id']} ({task['name']}) has begun {ran.count('begin')} times in {len(spent)} attempts"


def told_of_a_full_disk(index: Index, task: Row, flow: Iterable[str]) -> bool:
    """Whether a task has failed because a machine that was filled was full: that is told, and is no loss.

    A task of parts has no attempt of its own, its other parts end with the one that failed, and so does what follows.

    Args:
        index: The history.
        task: Its row.
        flow: Ids of all tasks of its workflow.
    """
    told_of = [
        row
        for task_id in flow
        for row in index.attempts[task_id]
        if index.tasks.get(task_id, row)["reason"] == row["reason"] == "disk_full"
        and row["worker_id"] in index.history.filled
    ]
    return bool(told_of) and task["reason"] in {"disk_full", "sibling_failed", "upstream_failed"}
