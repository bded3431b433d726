"""A server's store with much in it: many tasks of all statuses, and a training with many points."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson

from tunefleet.db import Connection
from tunefleet.db.repositories import journal, tasks
from tunefleet.db.repositories import workflows as workflow_rows
from tunefleet.db.repositories.task_transitions import Move, New, enter, switch
from tunefleet.lifecycle.task import TaskReason
from tunefleet.orchestrator.access import api_keys
from tunefleet.orchestrator.bootstrap import open_context
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.tasks import spec_columns
from tunefleet.placement import Requirement
from tunefleet.settings import ServerSettings

AT_ONCE = 5000
KINDS = ("lora_sft", "sft", "dpo", "merge", "evaluate")
ENDS = (TaskReason.FINISHED, TaskReason.FINISHED, TaskReason.BUG, TaskReason.CANCELLED_BY_USER)
"""What becomes of one task after another; every fifth stays in the queue."""
SECONDS_A_STEP = 2.0
WIDE = (
    "rewards/margins", "rewards/accuracies", "rewards/chosen", "logps/chosen", "logits/chosen", "reward", "reward_std",
    "objective", "kl", "entropy", "policy_loss", "value_loss", "completions/mean_length", "completions/clipped_ratio",
    "clip_ratio/low_mean", "step_time",
)  # fmt: skip
"""More metrics, each with a chart of its own."""


class Filled(NamedTuple):
    """The tasks with points.

    Args:
        training: The newest task; each point has five values.
        wide: The task before it; each point has those of `WIDE` too. None without such points.
    """

    training: str
    wide: str | None


def fill(folder: Path, *, count: int, points: int, wide_points: int = 0) -> Filled:
    """Fill the store of a server that does not run.

    Args:
        folder: Its data folder.
        count: How many tasks.
        points: How many points the newest of them has.
        wide_points: How many points with many values the one before it has.
    """
    core = open_context(ServerSettings(data=folder))
    try:
        asyncio.run(api_keys.ensure_first(core))
        ids = _tasks(core, count, time.time())
        _points(core, ids[-1], points)
        if wide_points:
            _points(core, ids[-2], wide_points, WIDE)
        return Filled(ids[-1], ids[-2] if wide_points else None)
    finally:
        core.close()


def _tasks(core: ServerContext, count: int, now: float) -> list[str]:
    id_ = new_id("wf")
    need = Requirement(kind="lora_sft", slot_class="job", tags=("none-has-it",))

    def workflow(connection: Connection) -> int:
        tasks.add_requirement(connection, need.key, need.dump())
        row = {
            "id": id_, "project": "default", "name": "search-of-rates", "owner": "bench", "status": "running",
            "open_tasks": count, "failed_tasks": 0, "cancelled_tasks": 0, "created_at": now, "idempotency_key": None,
            "request_hash": None,
        }  # fmt: skip
        return workflow_rows.insert_one(connection, row, document="", warnings="[]", size_bytes=0)

    seq = core.db.write(workflow).result()
    new = _new(id_, seq, need, range(count), now)
    ids = []
    while batch := list(islice(new, AT_ONCE)):
        core.db.write(partial(enter, new=batch, now=now)).result()
        ids += [each.values["id"] for each in batch]
        core.db.write(partial(_end, ids=ids[-len(batch) :], now=now)).result()
    return ids


def _new(workflow_id: str, seq: int, need: Requirement, numbers: range, now: float) -> Iterator[New]:
    for number in numbers:
        kind = KINDS[number // 5 % len(KINDS)] if number < numbers[-2] else "lora_sft"
        values = {
            "id": new_id("task"), "project": "default", "workflow_id": workflow_id, "workflow_seq": seq,
            "name": f"rate-{number:05}", "kind": kind,
            "slot_class": "job", "owner": ("ada", "ben", "cleo")[number % 3], "parent_task_id": None, "priority": 0,
            "rank": spec_columns.rank(now + number * 1e-3, 0), "requirement_key": need.key, "max_attempts": 3,
            "backoff_s": 10.0, "retry_on": "", "on_lost": "replace", "max_runtime_s": None, "queue_deadline": None,
            "created_at": now - 60 * (numbers[-1] - number),
        }  # fmt: skip
        yield New(values, "{}", "{}")


def _end(connection: Connection, ids: list[str], now: float) -> None:
    """Bring most tasks to their end, over the ways that lead there."""
    ended = {id_: ENDS[at % 5] for at, id_ in enumerate(ids) if at % 5 < len(ENDS)}
    for reason in (TaskReason.OFFERED, TaskReason.STARTED):
        rows = tasks.by_ids(connection, list(ended))
        switch(connection, [Move(row, reason) for row in rows.values()], now)
    rows = tasks.by_ids(connection, list(ended))
    switch(connection, [Move(row, ended[row.id]) for row in rows.values()], now)


def _points(core: ServerContext, task_id: str, count: int, more: Sequence[str] = ()) -> None:
    noise, began = random.Random(5), time.time() - count * SECONDS_A_STEP

    def operation(connection: Connection) -> None:
        launch = journal.add_launch(connection, task_id=task_id, launch_id="L1", attempt_id="bench", at=began)
        for start in range(0, count, AT_ONCE):
            rows = []
            for step in range(start, min(count, start + AT_ONCE)):
                at, said = began + step * SECONDS_A_STEP, _values(step, count, noise)
                said |= {name: number + noise.gauss(0, 0.3) for number, name in enumerate(more, 1)}
                curve, values = journal.curve_of("train", said), orjson.dumps(said).decode()
                rows.append((task_id, 1, step, "train", step + 1, step / count, at, None, None, curve, values))
            journal.add_records(connection, rows, [])
        journal.advance(connection, launch, cursor=count, progress=None)

    core.db.write(operation).result()


def _values(step: int, count: int, noise: random.Random) -> dict[str, float]:
    """Return what a training logs at a step; seldom, it evaluates."""
    share = step / count
    loss = 0.6 + 2.4 * math.exp(-6 * share) + noise.gauss(0, 0.15)
    values = {
        "loss": loss, "grad_norm": abs(noise.gauss(1.2, 0.4)), "learning_rate": 2e-4 * (1 - share),
        "mean_token_accuracy": 0.9 - loss / 6, "train_tokens_per_second": noise.gauss(5200, 90),
    }  # fmt: skip
    return values | ({"eval_loss": loss + 0.1} if step % (count // 50 or 1) == 0 else {})
