"""Delete federations that have ended, and unpin the files of their updates and versions."""

from __future__ import annotations

from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations import (
    federation_chunks,
    federation_tokens,
    federation_updates,
    federation_versions,
    federations,
)
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts, events, notifications
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.notifications import federation_webhooks

_UNPIN_BATCH: Final = 500  # bounds the parameters of one statement


def forget(connection: Connection, row: FederationRow) -> None:
    """Delete a federation with its versions; files that nothing else needs are garbage collected later."""
    members = federations.members(connection, row.seq)
    holders = [
        row.id,
        *(federation_updates.senders(row.id, each.worker)[0] for each in members),
        federation_chunks.holder(row.id),
        *federation_updates.holders_of(connection, row.seq),
        *federation_versions.holders_of(connection, row.seq, row.id),
    ]
    for start in range(0, len(holders), _UNPIN_BATCH):
        artifacts.unpin(connection, holders[start : start + _UNPIN_BATCH])
    artifacts.delete_rows(connection, federation_versions.of_artifacts(connection, row.seq))
    for member in members:
        lane = federation_webhooks.lane(row.id, member.worker)
        notifications.give_up_channel(connection, lane, "The federation was removed.")
    events.delete_of_federation(connection, row.seq)
    federation_tokens.forget(connection, row.id)
    quotas.store_document(connection, row.project, -len(row.spec.encode()))
    federations.delete_one(connection, row.seq)
