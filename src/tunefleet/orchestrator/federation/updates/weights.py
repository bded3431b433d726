"""What an update weighs that takes the place of an earlier one of its worker."""

from __future__ import annotations

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates
from tunefleet.db.federations.federation_updates import COUNTED, UpdateRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.orchestrator.federation.status import spec_of


def rows_of_both(connection: Connection, row: FederationRow, older: UpdateRow, newer: UpdateRow) -> int:
    """Return what an update weighs: its rows, and those of the one whose training it goes on with.

    Workers count from upload to upload. Whoever does not say what it started from went on where it was, as long as no
    version came between. An attempt that begins anew, or from a checkpoint, goes over rows of the one before it again:
    those count once.
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
    """Whether no version can have come between an update that names none and the next one of its worker.

    The first update of a round may be a late one, trained before the newest version replaced the worker's adapter; the
    next one does not contain it then. Too little weight for one update is better than rows that count twice.
    """
    if older.state != COUNTED:
        return False  # it waited for the round, and was made before its version
    return row.version == 0 or federation_updates.replaced_in_its_round(connection, older)
