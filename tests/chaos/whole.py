"""A small history without a fault, written by hand, for tests that break it."""

from __future__ import annotations

import json
from typing import Any

from tests.chaos.history import History, Journal, Row, Rows
from tests.chaos.ledger import Ledger

STEPS = 4
LINES = 3
_TRAINED, _COUNTED, _CANCELLED = "task-trained", "task-counted", "task-cancelled"


def ledger(*, together: bool = False) -> Ledger:
    """Return what clients were told in the history of `history`.

    Args:
        together: Whether the training and the command that counts are tasks of one workflow.
    """
    made = Ledger()
    for task, expects, more in (
        (_TRAINED, "trained", {"steps": STEPS}),
        (_COUNTED, "counted", {"lines": LINES, "file": "/counted"}),
        (_CANCELLED, "cancelled", {}),
    ):
        flow = task.replace("task", "wf")
        tasks = [_TRAINED, _COUNTED] if together and task == _TRAINED else [task]
        made.note("workflow", flow, tasks=tasks, key=flow, name=expects, round=0, expects=expects, **more)
    made.note("cancel", _CANCELLED)
    made.note("command", "cmd-1", task=_TRAINED)
    made.note("artifact", "art-pushed", sha256="d-pushed")
    made.note("campaign", "chaos")
    return made


def history() -> History:
    """Return a training that was killed and resumed, a command that ran twice, and a task that was cancelled."""
    digests = {name: name for name in ("d-adapter", "d-pushed")}
    journals = [Journal("worker-1", _TRAINED, "launch-2", 4)]
    marks = {"/counted": ["begin", "begin", "end"]}
    return History(rows=_rows(), digests=digests, journals=journals, marks=marks, filled=frozenset({"worker-2"}))


def _rows() -> Rows:
    ways = {
        _TRAINED: ["queued", "dispatched", "running", "queued", "dispatched", "running", "completed"],
        _COUNTED: ["queued", "dispatched", "running", "queued", "dispatched", "running", "completed"],
        _CANCELLED: ["queued", "cancelled"],
    }
    every: dict[str, list[Row]] = {name: [] for name in Rows.__dataclass_fields__}
    for seq, (task, way) in enumerate(ways.items()):
        every["workflows"].append(_flow(task.replace("task", "wf")))
        reason = "finished" if way[-1] == "completed" else "cancelled_by_user"
        every["tasks"].append(
            {"seq": seq, "id": task, "name": task, "status": way[-1], "reason": reason, "error": None}
        )
        result = json.dumps({"result": {"steps": STEPS}}) if way[-1] == "completed" else None
        every["task_documents"].append({"task_seq": seq, "result": result})
        for status in way:
            every["events"].append(_event(len(every["events"]), task, status))
        if way[-1] == "completed":
            every["attempts"] += [_attempt(task, 1, "void", "worker_lost"), _attempt(task, 2, "finished", "finished")]
    every["launches"] = [_launch(1, hidden_after=2), _launch(2, hidden_after=None)]
    every["metric_points"] = [*(_point(1, seq, seq + 1) for seq in range(3)), *(_point(2, n, n + 2) for n in (1, 2))]
    text = b"line 1\nline 1\nline 2\nline 3\n"
    every["log_chunks"] = [
        {"task_id": _COUNTED, "end": 7, "data": text[:7]},
        {"task_id": _COUNTED, "end": len(text), "data": text[7:]},
    ]
    every["artifacts"] = [{"id": "art-1", "task_id": _TRAINED, "name": "final_lora", "kind": "adapter"}]
    every["artifact_files"] = [
        {"artifact_id": "art-1", "path": "adapter.safetensors", "digest": "d-adapter"},
        {"artifact_id": "art-pushed", "path": "pushed", "digest": "d-pushed"},
    ]
    every["commands"] = [{"id": "cmd-1", "task_id": _TRAINED, "command": "save_checkpoint", "state": "durable"}]
    every["federations"] = [{"seq": 1, "id": "fed-1", "status": "completed", "version": 1}]
    every["federation_rounds"] = [{"federation_seq": 1, "number": 1, "holder": None}]
    every["federation_updates"] = [_update("part-0", 2), _update("part-1", 2)]
    every["federation_versions"] = [{"federation_seq": 1, "version": 1}]
    every["campaigns"] = [{"seq": 1, "id": "camp-1", "name": "chaos"}]
    every["campaign_cycles"] = [_cycle(0), _cycle(1)]
    every["campaign_steps"] = [_submitted(0), _submitted(1)]
    every["model_versions"] = [{"campaign_id": "camp-1", "cycle": number} for number in (0, 1)]
    return Rows(**every)


def _flow(id_: str) -> Row:
    return {"id": id_, "idempotency_key": id_, "status": "completed", "open_tasks": 0}


def _event(id_: int, task: str, status: str) -> Row:
    kind = "task.started" if status == "running" else f"task.{status}"
    return {"id": id_, "task_id": task, "kind": kind, "data": json.dumps({"status": status})}


def _attempt(task: str, number: int, state: str, reason: str) -> Row:
    return {
        "id": f"{task}-{number}", "task_id": task, "number": number, "worker_id": "worker-1", "state": state,
        "reason": reason, "gang_of": None, "accepted_at": 1.0,
    }  # fmt: skip


def _launch(number: int, *, hidden_after: int | None) -> Row:
    cursor = 3 if number == 1 else 4
    own = {"launch": f"launch-{number}", "number": number, "hidden_after": hidden_after, "cursor": cursor}
    return {"task_id": _TRAINED, **own}


def _point(launch: int, seq: int, step: int) -> Row:
    where: dict[str, Any] = {"task_id": _TRAINED, "launch_number": launch, "seq": seq, "series": "train", "step": step}
    return {**where, "window_from": step, "window_to": step, "values_json": '{"loss":1.0}'}


def _update(worker: str, step: int) -> Row:
    own = {"worker": worker, "step": step, "num_examples": 8, "rows_after": 8}
    return {"federation_seq": 1, "state": "aggregated", **own}


def _cycle(number: int) -> Row:
    return {"campaign_seq": 1, "number": number, "position": number, "status": "completed", "error": None}


def _submitted(cycle: int) -> Row:
    return {"campaign_seq": 1, "cycle": cycle, "step": "submit", "outcome": json.dumps({"task_id": f"task-c{cycle}"})}
