"""The row of a new federation, whoever makes it: a person, or a training task for its parts."""

from __future__ import annotations

from typing import Any

from tunefleet.db import Connection
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.rows import TaskRow
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.federation.status import tell
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import formats
from tunefleet.spec.options.federation_options import FederationSpec


def make(
    connection: Connection, spec: FederationSpec, now: float, *, project: str, owner: str, task: TaskRow | None = None
) -> FederationRow:
    """Store a federation that is not started yet, and tell of it.

    Args:
        connection: Of the operation.
        spec: What is asked of it.
        now: Unix time.
        project: Where it is.
        owner: Whose it is.
        task: The training whose parts take part, if it is one's.

    Raises:
        QuotaError: If the project would keep more than it may.
    """
    id_ = new_id("fed")
    values: dict[str, Any] = {
        "id": id_, "project": project, "name": spec.name or id_, "owner": owner, "status": "queued",
        "spec": spec.model_dump_json(exclude_none=True), "contract": None,
        "callback_secret": spec.callback_secret or formats.new_secret(), "version": 0, "round": 0, "created_at": now,
        "task_seq": None if task is None else task.seq,
    }  # fmt: skip
    quotas.store_document(connection, project, len(values["spec"].encode()))
    row = federations.insert_one(connection, values)
    about: dict[str, Any] = {} if task is None else {"task": task.id}
    tell(connection, row, "federation.created", now, name=row.name, **about)
    return row
