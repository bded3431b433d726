"""Accept an update whose files are stored and validated: assign it to a round, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federations, rounds
from tunefleet.db.federations.federation_updates import (
    COUNTED,
    DISCARDED,
    REJECTED,
    SUPERSEDED,
    WAITING,
    UpdateRow,
    senders,
)
from tunefleet.db.federations.federations import FederationRow, MemberRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ArtifactError, ConflictError, ForbiddenError, GoneError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundStatus
from tunefleet.orchestrator.federation import rounds as round_operations
from tunefleet.orchestrator.federation.rounds import combined_rows
from tunefleet.orchestrator.federation.status import FOREVER, PAUSED, QUEUED, locked, move, publish_event, spec_of
from tunefleet.schemas.federated import Losses, UploadDtype
from tunefleet.spec.options.federation_options import MAX_WORKERS

UNCHANGED: Final = (
    "Not counted: the weights are identical to those of your last update, so nothing was trained since. After a hot "
    "reload the optimizer still updates the old parameters; copy the new values into the adapter that trains, as "
    "tunefleet.FederatedCallback does."
)


LATE: Final = (
    "Not counted: a later update of the same training run arrived first and counts instead. No action is needed."
)


COUNTED_BEFORE: Final = (
    "Not counted: an earlier launch of the same training run has already sent these rows. The run resumed from an "
    "older checkpoint, and counts again from the first new row. No action is needed."
)
# Reasons not to count an update that are not the worker's error.
HARMLESS: Final = frozenset({LATE, COUNTED_BEFORE})


class CheckAgain(ConflictError):
    """The federation's contract was set while an update was validated; validate it again."""


@dataclass(frozen=True, slots=True)
class ValidatedUpdate:
    """A validated update.

    Args:
        checked_against: The federation's contract (JSON) that it was validated against; None if there was none.
        tokenizer: Path → digest of the tokenizer files; may be empty.
        doubt: Why it does not count although it is valid; None if it counts.
    """

    worker: str
    step: int
    num_examples: int
    model_digest: str
    size_bytes: int
    values_digest: str
    config: str
    checked_against: str | None
    contract: str
    base_version: int | None = None
    upload_dtype: UploadDtype = "fp32"
    tokenizer: Mapping[str, str] = field(default_factory=dict)
    norm: float | None = None
    losses: Losses = field(default_factory=Losses)
    upload_digest: str | None = None
    doubt: str | None = None
    attempt: int | None = None
    rows_before: int | None = None

    @property
    def rows_after(self) -> int | None:
        """Rows that the training run had processed at the end of this update; None if not reported."""
        return None if self.rows_before is None else self.rows_before + self.num_examples


@dataclass(frozen=True, slots=True)
class Refused:
    """An update that was rejected."""

    worker: str
    step: int
    num_examples: int
    size_bytes: int
    reason: str
    base_version: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The outcome of an upload."""

    update: UpdateRow
    counted: bool
    closes: bool
    round: int
    version: int
    warning: str | None = None
    replaces: int | None = None


def refuse_upload(connection: Connection, row: FederationRow, worker: str, attempt: int | None = None) -> None:
    """Raise if an update cannot count; called before its body is read."""
    if FederationStatus(row.status).final:
        raise GoneError(f"Federation {row.id} is {row.status} and accepts no more updates.")
    spec = spec_of(row)
    if spec.participants is not None:
        if worker not in spec.participants:
            raise ForbiddenError(
                f"{worker} is not a participant of {row.id} ({', '.join(sorted(spec.participants)[:20])}).",
                hint="Upload under one of these names.",
            )
    elif federations.member(connection, row.seq, worker) is None:
        most = spec.max_workers or MAX_WORKERS
        if federations.member_counts(connection, [row.seq]).get(row.seq, 0) >= most:
            raise ForbiddenError(
                f"{row.id} already has its maximum of {most:,} workers, and {worker} is not one of them.",
                hint=f"`tunefleet federation show {row.id}` lists them; `max_workers` sets the limit.",
            )
    if attempt is not None:
        _refuse_replaced(row, federations.member(connection, row.seq, worker), attempt)


def _refuse_replaced(row: FederationRow, member: MemberRow | None, attempt: int) -> None:
    if member is not None and member.attempt is not None and attempt < member.attempt:
        raise GoneError(
            f"Attempt {attempt} of {member.worker} was replaced by attempt {member.attempt} in {row.id}.",
            hint="No action is needed: the later attempt repeats what this one has trained since.",
        )


def known(connection: Connection, row: FederationRow, worker: str, step: int, digest: str) -> Accepted | None:
    """Return the outcome of an update that was accepted before; None if it is new."""
    found = federation_updates.same(connection, row.seq, worker, step, digest)
    if found is None:
        return None
    outcome = _outcome(row, found, rounds.get(connection, row.seq, row.round), closes=False)
    return replace(outcome, replaces=federation_updates.replaced_by(connection, found))


def accept(connection: Connection, row: FederationRow, arrived: ValidatedUpdate, now: float) -> Accepted:
    """Store an update, and count it in the open round of its worker, or queue it for the next one.

    It replaces an earlier update of the same worker. The call is idempotent: the same update (worker, step and file) is
    stored once, and each repetition returns its current outcome.

    Raises:
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        ForbiddenError: If the worker may not take part.
        CheckAgain: If the federation's contract is not the one that the update was validated against.
        ArtifactError: If one of its files is not stored.
    """
    row = locked(connection, row)
    before = known(connection, row, arrived.worker, arrived.step, arrived.upload_digest or arrived.model_digest)
    if before is not None:
        if says_other_rows(before, arrived.num_examples, arrived.attempt):
            _unpin_upload(connection, row, arrived)
            return _correct(connection, row, before, arrived.num_examples, now)
        return before
    refuse_upload(connection, row, arrived.worker, arrived.attempt)
    if row.contract != arrived.checked_against:
        raise CheckAgain(f"The first update of {row.id} arrived while this one was validated.", hint="Send it again.")
    _refuse_unstored(connection, row, arrived)
    if row.contract is None and arrived.doubt is None:
        federations.change(connection, row.seq, {"contract": arrived.contract})
    if row.status == QUEUED:
        # The guide has no call that starts a job: its first upload does.
        row = begin(connection, row, now)
    member = _member(connection, row, arrived, now)
    doubt = arrived.doubt or (UNCHANGED if member.values_digest == arrived.values_digest else None)
    current = rounds.get(connection, row.seq, row.round)
    assert current is not None, "a started federation has a round"
    stored, replaced = _store(connection, row, current, arrived, doubt, now)
    # A file that was uploaded on its own is pinned for its sender until here; the update's own pin replaces that.
    _unpin_upload(connection, row, arrived)
    _update_member(connection, member, stored, arrived, now)
    publish_event(
        connection, row, "federation.update", now, is_due=current.deadline_at is None, worker=stored.worker,
        update=stored.seq, round=stored.round, state=stored.state, step=stored.step, num_examples=stored.num_examples,
    )  # fmt: skip
    closes = False
    if stored.state == COUNTED:
        closes = round_operations.close_if_complete(connection, row, _with_deadline(connection, row, current, now), now)
    accepted = replace(
        _outcome(row, stored, current, closes=closes), replaces=None if replaced is None else replaced.seq
    )
    again = replaced is not None and stored.step <= replaced.step and stored.attempt == replaced.attempt
    if accepted.warning is None and replaced is not None and again:
        return replace(accepted, warning=_shared_name_warning(replaced))
    return accepted


def says_other_rows(before: Accepted, num_examples: int, attempt: int | None) -> bool:
    """Whether an update that was accepted is sent again with a different number of rows.

    Updates that replaced another one, or that count attempts, have an adjusted number of rows: it cannot be compared.
    """
    found = before.update
    alone = before.replaces is None and attempt is None and found.attempt is None
    return alone and found.num_examples != num_examples and found.state not in {SUPERSEDED, DISCARDED, REJECTED}


def _correct(connection: Connection, row: FederationRow, before: Accepted, num_examples: int, now: float) -> Accepted:
    found, current = before.update, rounds.get(connection, row.seq, row.round)
    is_open = current is not None and current.status == RoundStatus.COLLECTING
    if found.state != WAITING and (found.round != row.round or not is_open):
        warning = (
            f"It counts in round {found.round} with {found.num_examples:,} rows; the round is closed, and the number "
            f"cannot be changed to {num_examples:,} any more."
        )
        return replace(before, warning=warning)
    changes: dict[str, Any] = {"num_examples": num_examples}
    if found.rows_before is not None:
        changes["rows_after"] = found.rows_before + num_examples
    federation_updates.change(connection, [found.seq], changes)
    member = federations.member(connection, row.seq, found.worker)
    if member is not None:
        more = num_examples - found.num_examples
        federations.put_member(connection, member._replace(num_examples=member.num_examples + more))
    publish_event(
        connection, row, "federation.update_corrected", now, is_due=False, worker=found.worker, update=found.seq,
        round=found.round, state=found.state, step=found.step, num_examples=num_examples,
        num_examples_before=found.num_examples,
    )  # fmt: skip
    corrected = f"Its number of rows was changed from {found.num_examples:,} to {num_examples:,}."
    return replace(before, update=found._replace(num_examples=num_examples), warning=corrected)


def reject(connection: Connection, row: FederationRow, refused: Refused, now: float) -> UpdateRow:
    """Record a rejected update for the report of the round's version; only the newest of each worker is kept."""
    row = locked(connection, row)
    federation_updates.delete_rejected(connection, row.seq, row.round, refused.worker)
    new = UpdateRow(
        row.seq, refused.worker, row.round, REJECTED, refused.reason, refused.step, refused.num_examples,
        refused.base_version, None, None, None, None, "{}", "fp32", refused.size_bytes, None, None, None, None, now,
        now,
    )  # fmt: skip
    stored = federation_updates.insert_one(connection, new)
    data: dict[str, Any] = {
        "worker": refused.worker,
        "update": stored.seq,
        "round": row.round,
        "reason": refused.reason,
    }
    publish_event(connection, row, "federation.update_refused", now, **data)
    return stored


def begin(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    """Start a federation, or resume it after a pause.

    Raises:
        IllegalTransition: If it is running or has ended.
    """
    row = move(connection, row, FederationStatus.RUNNING, now)
    round_operations.tick(connection, row.seq, now)
    return locked(connection, row)


def _refuse_unstored(connection: Connection, row: FederationRow, arrived: ValidatedUpdate) -> None:
    digests = [arrived.model_digest, *arrived.tokenizer.values()]
    known = artifacts.known(connection, row.project, digests)
    missing = [digest for digest in digests if digest not in known]
    if missing:
        raise ArtifactError(f"The file {missing[0][:12]}… of the update was not uploaded.", hint="Upload it first.")


def _member(connection: Connection, row: FederationRow, arrived: ValidatedUpdate, now: float) -> MemberRow:
    known = federations.member(connection, row.seq, arrived.worker)
    return known or MemberRow(row.seq, arrived.worker, None, 0, 0, None, None, None, None, now, now)


def _unpin_upload(connection: Connection, row: FederationRow, arrived: ValidatedUpdate) -> None:
    uploaded = [arrived.model_digest, arrived.upload_digest or ""]
    artifacts.unpin_files(connection, uploaded, senders(row.id, arrived.worker))


def _store(
    connection: Connection,
    row: FederationRow,
    current: RoundRow,
    arrived: ValidatedUpdate,
    doubt: str | None,
    now: float,
) -> tuple[UpdateRow, UpdateRow | None]:
    """Store an update, and return it with the one that it replaces."""
    counts = doubt is None and round_operations.is_participant(current, arrived.worker)
    state = DISCARDED if doubt is not None else COUNTED if counts else WAITING
    number = current.number if counts or doubt else None
    older = None if doubt is not None else federation_updates.current(connection, row.seq, arrived.worker, number)
    if older is not None and _is_late(older, arrived):
        return _store(connection, row, current, arrived, LATE, now)
    if doubt is None:
        remaining = _without_counted_rows(connection, row, older, arrived)
        if remaining is None:
            return _store(connection, row, current, arrived, COUNTED_BEFORE, now)
        arrived = remaining
    new = UpdateRow(
        row.seq, arrived.worker, number, state, doubt, arrived.step,
        arrived.num_examples, arrived.base_version, arrived.upload_digest or arrived.model_digest,
        arrived.model_digest, arrived.values_digest, arrived.config,
        orjson.dumps(dict(arrived.tokenizer)).decode(), arrived.upload_dtype, arrived.size_bytes, arrived.norm,
        arrived.losses.before, arrived.losses.after, None, now, None if doubt is None else now,
        attempt=arrived.attempt, rows_before=arrived.rows_before, rows_after=arrived.rows_after,
    )  # fmt: skip
    if doubt is not None:
        return federation_updates.insert_one(connection, new), None
    if older is not None:
        new = new._replace(num_examples=combined_rows(connection, row, older, new))
        # First, because a unique index allows one update of a worker per round.
        federation_updates.change(connection, [older.seq], {"state": DISCARDED})
    stored = federation_updates.insert_one(connection, new)
    if older is not None:
        round_operations.supersede(connection, older, stored.seq, now)
    files = [arrived.model_digest, *arrived.tokenizer.values()]
    artifacts.hold(connection, files, holder=stored.holder, until=FOREVER)
    return stored, older


def _is_late(older: UpdateRow, arrived: ValidatedUpdate) -> bool:
    """Whether a later update of the same attempt has overtaken this one."""
    if arrived.attempt is None or arrived.attempt != older.attempt:
        return False  # without attempt numbers the worker may have restarted from scratch
    if arrived.rows_after is None or older.rows_after is None:
        return False
    return arrived.rows_after < older.rows_after


def _without_counted_rows(
    connection: Connection, row: FederationRow, older: UpdateRow | None, arrived: ValidatedUpdate
) -> ValidatedUpdate | None:
    """Subtract the rows that other updates of the same training run already count; None if no row is left."""
    # A run that resumes on another worker from an older checkpoint trains on some rows twice. Without attempt numbers
    # it may be a new training run instead, so nothing is subtracted.
    if arrived.attempt is None or arrived.rows_before is None or arrived.rows_after is None:
        return arrived
    apart = None if older is None else older.seq
    before = max(federation_updates.rows_taken(connection, row.seq, arrived.worker, apart=apart), arrived.rows_before)
    left = arrived.rows_after - before
    return None if left <= 0 else replace(arrived, rows_before=before, num_examples=left)


def _update_member(
    connection: Connection, member: MemberRow, stored: UpdateRow, arrived: ValidatedUpdate, now: float
) -> None:
    loss = arrived.losses.after if arrived.losses.after is not None else arrived.losses.before
    member = member._replace(
        step=stored.step,
        seen_at=now,
        loss=loss if loss is not None else member.loss,
        round=stored.round or member.round,
        attempt=stored.attempt if stored.attempt is not None else member.attempt,
    )
    if stored.state != DISCARDED:
        member = member._replace(
            updates=member.updates + 1,
            num_examples=member.num_examples + _own_rows(stored, arrived),
            values_digest=stored.values_digest,
        )
    federations.put_member(connection, member)


def _own_rows(stored: UpdateRow, arrived: ValidatedUpdate) -> int:
    """Return the number of new rows in an update, without subtracted rows and those of the update that it replaces."""
    if stored.rows_before is None or stored.rows_after is None:
        return arrived.num_examples
    return stored.rows_after - stored.rows_before


def _with_deadline(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> RoundRow:
    """Return the round with a deadline; the clock starts at the first update."""
    if current.deadline_at is not None:
        return current
    return rounds.change(connection, current, {"deadline_at": now + spec_of(row).deadline_s})


def _shared_name_warning(replaced: UpdateRow) -> str:
    return (
        f"It replaces update {replaced.seq}, which was sent earlier under the name {replaced.worker} and had reached "
        f"step {replaced.step}. If two machines share this name, give each one its own."
    )


def _outcome(row: FederationRow, stored: UpdateRow, current: RoundRow | None, *, closes: bool) -> Accepted:
    counted = stored.state not in {WAITING, SUPERSEDED, DISCARDED, REJECTED}
    at, warning = stored.round or row.round, None
    if stored.state == WAITING:
        sampled = current is not None and current.status != RoundStatus.SAMPLING
        at = row.round + 1 if sampled else row.round
        status = f"Round {row.round} is {current.status} and does not accept it. " if current and sampled else ""
        warning = f"{status}This update counts in round {at}, if {stored.worker} is a participant of it."
    elif not counted:
        warning = stored.reason
    elif row.status == PAUSED:
        warning = (
            f"The federation is paused. The update counts in round {at}, which closes after "
            f"`tunefleet federation start {row.id}`."
        )
    return Accepted(stored, counted, closes, at, row.version, warning)
