"""Runs in lists: titles, tags and notes; model, dataset and method from the spec; a summary of the metrics.

The columns of existing tasks are filled from their specs. Their metrics are summarized with the next point they log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0101"
down_revision = "0100"
branch_labels = None
depends_on = None

_TRAINERS = {"sft", "lora_sft", "dpo", "kto", "orpo", "reward", "grpo", "rloo", "ppo"}


def upgrade() -> None:
    for name in ("title", "model", "dataset", "method"):
        op.add_column("tasks", sa.Column(name, sa.String(), nullable=True))
    op.add_column("task_documents", sa.Column("notes", sa.Text(), nullable=True))
    op.add_column("journal_room", sa.Column("summary", sa.Text(), nullable=True))
    op.create_table(
        "task_tags",
        sa.Column("task_seq", sa.BigInteger(), nullable=False),
        sa.Column("tag", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", "tag", name="pk_task_tags"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_task_tags_tag", "task_tags", ["tag"])
    _describe_tasks()


def _describe_tasks() -> None:
    connection = op.get_bind()
    query = "SELECT task_seq, coalesce(resolved, spec) FROM task_documents WHERE task_seq > :after ORDER BY task_seq"
    change = sa.text("UPDATE tasks SET model = :model, dataset = :dataset, method = :method WHERE seq = :seq")
    after = 0
    while rows := connection.execute(sa.text(f"{query} LIMIT 1000"), {"after": after}).all():
        connection.execute(change, [{"seq": seq, **_described(json.loads(spec))} for seq, spec in rows])
        after = rows[-1][0]


def _described(spec: Mapping[str, Any]) -> dict[str, str | None]:
    data = spec.get("data")
    found = [_at(spec, "data", name) for name in ("artifact", "dataset_name", "path")]
    dataset = data if isinstance(data, str) else next((each for each in found if each), None)
    return {
        "model": _text(_at(spec, "model", "source", "identifier")),
        "dataset": _text(dataset),
        "method": _method(spec),
    }


def _method(spec: Mapping[str, Any]) -> str | None:
    kind = str(spec.get("taskType"))
    if kind not in _TRAINERS:
        return None
    trainer = kind.removeprefix("lora_")
    if trainer == kind and spec.get("lora") is None:
        return f"full_{trainer}"
    in_4bit = _at(spec, "quantization", "load_in_4bit") or _at(spec, "model", "transformers", "load_in_4bit")
    return f"qlora_{trainer}" if in_4bit is True else f"lora_{trainer}"


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value and "${" not in value else None
