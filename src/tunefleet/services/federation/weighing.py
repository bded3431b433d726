"""What an update weighs that takes the place of an earlier one of its worker."""

from __future__ import annotations

from tunefleet.spec.federating import FederationSpec
from tunefleet.store.federation_updates import COUNTED, UpdateRow


def rows_of_both(spec: FederationSpec, older: UpdateRow, newer: UpdateRow) -> int:
    """Return what an update weighs: its rows, and those of the one whose training it goes on with.

    Workers count from upload to upload. Whoever does not say what it started from went on where it was, as long as no
    version came between: that is so within a round, and not for one that has been waiting for the next. An attempt that
    begins anew, or from a checkpoint, goes over rows of the one before it again: those count once.

    Args:
        spec: The federation's.
        older: The update that makes way, in the state that it was in.
        newer: The one that takes its place, with its own rows.
    """
    if newer.base_version != older.base_version:
        return newer.num_examples
    if newer.base_version is None and older.state != COUNTED:
        return newer.num_examples
    if newer.rows_before is not None and older.rows_after is not None:
        again = older.rows_after - newer.rows_before
        kept = older.num_examples - min(max(again, 0), older.num_examples)
        return min(kept + newer.num_examples, spec.max_num_examples)
    if newer.step <= older.step or newer.attempt != older.attempt:
        return newer.num_examples
    return min(older.num_examples + newer.num_examples, spec.max_num_examples)
