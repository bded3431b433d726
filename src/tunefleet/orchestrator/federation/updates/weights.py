"""The weight of an update that replaces an earlier one of the same worker."""

from __future__ import annotations

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates
from tunefleet.db.federations.federation_updates import COUNTED, UpdateRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.orchestrator.federation.status import spec_of


def rows_of_both(connection: Connection, row: FederationRow, older: UpdateRow, newer: UpdateRow) -> int:
    """Return the weight of an update: its own rows, plus those of the update whose training it continues.

    Workers count rows from upload to upload. Without a base version, a worker is assumed to continue its own training
    unless a version was published in between. Rows that a new attempt trains on again, from scratch or from a
    checkpoint, count once.
    """
    spec = spec_of(row)
    if newer.base_version != older.base_version:
        return newer.num_examples
    if newer.base_version is None and not _went_on(connection, row, older):
        return newer.num_examples
    if newer.rows_before is not None and older.rows_after is not None:
        again = older.rows_after - newer.rows_before
        kept = older.num_examples - min(max(again, 0), older.num_examples)
        return min(kept + newer.num_examples, spec.max_num_examples)
    if newer.step <= older.step or newer.attempt != older.attempt:
        return newer.num_examples
    return min(older.num_examples + newer.num_examples, spec.max_num_examples)


def _went_on(connection: Connection, row: FederationRow, older: UpdateRow) -> bool:
    """Whether the worker cannot have loaded a version between an update without base version and its next one."""
    # The first update of a round may be late: trained before the newest version replaced the worker's adapter. The next
    # update does not include it then. Too little weight for one update is better than counting rows twice.
    if older.state != COUNTED:
        return False  # it was queued for the next round, so it precedes this round's version
    return row.version == 0 or federation_updates.replaced_in_its_round(connection, older)
