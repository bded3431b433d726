"""Take an update whose files are stored and checked: decide in which round it counts, in one transaction."""

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
from tunefleet.orchestrator.federation import rounds as verbs
from tunefleet.orchestrator.federation.status import FOREVER, PAUSED, QUEUED, locked, move, spec_of, tell
from tunefleet.orchestrator.federation.updates.weights import rows_of_both
from tunefleet.schemas.federated import Losses, UploadDtype
from tunefleet.spec.options.federation_options import MAX_WORKERS

UNCHANGED: Final = (
    "These are the weights of your last update: nothing was trained since, and they do not count. After a hot reload "
    "the optimizer still holds the old parameters; copy the new values into the adapter that trains, as "
    "tunefleet.FederatedCallback does."
)


LATE: Final = (
    "An update that the same training made after this one has come before it, and counts; this one does not. Nothing "
    "is to be done."
)


COUNTED_BEFORE: Final = (
    "The rows of this update count already: an earlier launch of the same training has sent them. It goes on from an "
    "older checkpoint, and counts again from the first row that is new. Nothing is to be done."
)
HARMLESS: Final = frozenset({LATE, COUNTED_BEFORE})
"""Reasons not to count that say nothing of how a worker does."""


class CheckAgain(ConflictError):
    """What each update must be was settled while an update was checked; check it again, against that."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """An update that was checked.

    Args:
        checked_against: The federation's contract (JSON) that it was checked against; null if there was none.
        tokenizer: Path → digest of the files that go with an adapter; may be empty.
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
        """Rows of its training up to its end, those before it included, if its worker says so."""
        return None if self.rows_before is None else self.rows_before + self.num_examples


@dataclass(frozen=True, slots=True)
class Refused:
    """An update that cannot take part."""

    worker: str
    step: int
    num_examples: int
    size_bytes: int
    reason: str
    base_version: int | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """What became of an update."""

    update: UpdateRow
    counted: bool
    closes: bool
    round: int
    version: int
    warning: str | None = None
    replaces: int | None = None


def refuse_upload(connection: Connection, row: FederationRow, worker: str, attempt: int | None = None) -> None:
    """Refuse, before anything is read, an update that cannot count."""
    if FederationStatus(row.status).final:
        raise GoneError(f"The federation {row.id} is {row.status}; it takes no more updates.")
    spec = spec_of(row)
    if spec.participants is not None:
        if worker not in spec.participants:
            raise ForbiddenError(
                f"{worker} does not take part in {row.id}; {', '.join(sorted(spec.participants)[:20])} do.",
                hint="Upload under one of these names.",
            )
    elif federations.member(connection, row.seq, worker) is None:
        most = spec.max_workers or MAX_WORKERS
        if federations.member_counts(connection, [row.seq]).get(row.seq, 0) >= most:
            raise ForbiddenError(
                f"{row.id} has its {most:,} workers, and {worker} is none of them.",
                hint=f"`tunefleet federation show {row.id}` lists them; `max_workers` says how many it takes.",
            )
    if attempt is not None:
        _refuse_replaced(row, federations.member(connection, row.seq, worker), attempt)


def _refuse_replaced(row: FederationRow, member: MemberRow | None, attempt: int) -> None:
    if member is not None and member.attempt is not None and attempt < member.attempt:
        raise GoneError(
            f"Attempt {attempt} of {member.worker} is over: attempt {member.attempt} takes part in {row.id} now.",
            hint="Nothing is to be done: what this one has trained since then is not needed.",
        )


def known(connection: Connection, row: FederationRow, worker: str, step: int, digest: str) -> Accepted | None:
    """Return what became of an update that was taken before, if it was."""
    found = federation_updates.same(connection, row.seq, worker, step, digest)
    if found is None:
        return None
    told = _told(row, found, rounds.get(connection, row.seq, row.round), closes=False)
    return replace(told, replaces=federation_updates.replaced_by(connection, found))


def accept(connection: Connection, row: FederationRow, arrived: Arrived, now: float) -> Accepted:
    """Store an update, and let it count in the round that is open for its worker, or wait for the next one.

    It replaces an earlier one of its worker. The same update (worker, step and file) is taken once, however often it
    is sent: each time it gets the answer that fits what became of it.

    Raises:
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        ForbiddenError: If the worker may not take part.
        CheckAgain: If the federation's contract is not the one that the update was checked against.
        ArtifactError: If one of its files is not stored.
    """
    row = locked(connection, row)
    before = known(connection, row, arrived.worker, arrived.step, arrived.upload_digest or arrived.model_digest)
    if before is not None:
        if says_other_rows(before, arrived.num_examples, arrived.attempt):
            _let_go(connection, row, arrived)
            return _correct(connection, row, before, arrived.num_examples, now)
        return before
    refuse_upload(connection, row, arrived.worker, arrived.attempt)
    if row.contract != arrived.checked_against:
        raise CheckAgain(f"The first update of {row.id} came while this one was checked.", hint="Send it again.")
    _refuse_unstored(connection, row, arrived)
    if row.contract is None and arrived.doubt is None:
        federations.change(connection, row.seq, {"contract": arrived.contract})
    if row.status == QUEUED:
        # The guide's workers upload as soon as they have something.
        row = begin(connection, row, now)
    member = _member(connection, row, arrived, now)
    doubt = arrived.doubt or (UNCHANGED if member.values_digest == arrived.values_digest else None)
    current = rounds.get(connection, row.seq, row.round)
    assert current is not None, "a federation that was started has a round"
    stored, replaced = _store(connection, row, current, arrived, doubt, now)
    # Whoever uploaded a file by itself held it until now.
    _let_go(connection, row, arrived)
    _remember(connection, member, stored, arrived, now)
    tell(
        connection, row, "federation.update", now, is_due=current.deadline_at is None, worker=stored.worker,
        update=stored.seq, round=stored.round, state=stored.state, step=stored.step, num_examples=stored.num_examples,
    )  # fmt: skip
    closes = False
    if stored.state == COUNTED:
        closes = verbs.close_if_complete(connection, row, _dated(connection, row, current, now), now)
    accepted = replace(_told(row, stored, current, closes=closes), replaces=None if replaced is None else replaced.seq)
    again = replaced is not None and stored.step <= replaced.step and stored.attempt == replaced.attempt
    if accepted.warning is None and replaced is not None and again:
        return replace(accepted, warning=_same_name(replaced))
    return accepted


def says_other_rows(before: Accepted, num_examples: int, attempt: int | None) -> bool:
    """Whether an update that was taken comes again with another number of rows.

    What replaced an earlier one, or counts attempts, does not weigh what it said, so nothing can be told of it.
    """
    found = before.update
    alone = before.replaces is None and attempt is None and found.attempt is None
    return alone and found.num_examples != num_examples and found.state not in {SUPERSEDED, DISCARDED, REJECTED}


def _correct(connection: Connection, row: FederationRow, before: Accepted, num_examples: int, now: float) -> Accepted:
    found, current = before.update, rounds.get(connection, row.seq, row.round)
    is_open = current is not None and current.status == RoundStatus.COLLECTING
    if found.state != WAITING and (found.round != row.round or not is_open):
        told = (
            f"It counts in round {found.round} with {found.num_examples:,} rows; that is averaged, and cannot become "
            f"{num_examples:,} now."
        )
        return replace(before, warning=told)
    changes: dict[str, Any] = {"num_examples": num_examples}
    if found.rows_before is not None:
        changes["rows_after"] = found.rows_before + num_examples
    federation_updates.change(connection, [found.seq], changes)
    member = federations.member(connection, row.seq, found.worker)
    if member is not None:
        more = num_examples - found.num_examples
        federations.put_member(connection, member._replace(num_examples=member.num_examples + more))
    tell(
        connection, row, "federation.update_corrected", now, is_due=False, worker=found.worker, update=found.seq,
        round=found.round, state=found.state, step=found.step, num_examples=num_examples,
        num_examples_before=found.num_examples,
    )  # fmt: skip
    said = f"Its number of rows is {num_examples:,} now; it was {found.num_examples:,}."
    return replace(before, update=found._replace(num_examples=num_examples), warning=said)


def reject(connection: Connection, row: FederationRow, refused: Refused, now: float) -> UpdateRow:
    """Keep that an update was refused, so that the round's version says so; the newest of each worker is enough."""
    row = locked(connection, row)
    federation_updates.delete_rejected(connection, row.seq, row.round, refused.worker)
    new = UpdateRow(
        row.seq, refused.worker, row.round, REJECTED, refused.reason, refused.step, refused.num_examples,
        refused.base_version, None, None, None, None, "{}", "fp32", refused.size_bytes, None, None, None, None, now,
        now,
    )  # fmt: skip
    stored = federation_updates.insert_one(connection, new)
    told: dict[str, Any] = {
        "worker": refused.worker,
        "update": stored.seq,
        "round": row.round,
        "reason": refused.reason,
    }
    tell(connection, row, "federation.update_refused", now, **told)
    return stored


def begin(connection: Connection, row: FederationRow, now: float) -> FederationRow:
    """Start a federation, or let it go on after a pause.

    Raises:
        IllegalTransition: If it runs or has ended.
    """
    row = move(connection, row, FederationStatus.RUNNING, now)
    verbs.tick(connection, row.seq, now)
    return locked(connection, row)


def _refuse_unstored(connection: Connection, row: FederationRow, arrived: Arrived) -> None:
    digests = [arrived.model_digest, *arrived.tokenizer.values()]
    known = artifacts.known(connection, row.project, digests)
    lacking = [digest for digest in digests if digest not in known]
    if lacking:
        raise ArtifactError(f"The file {lacking[0][:12]}… of the update was not uploaded.", hint="Upload it first.")


def _member(connection: Connection, row: FederationRow, arrived: Arrived, now: float) -> MemberRow:
    known = federations.member(connection, row.seq, arrived.worker)
    return known or MemberRow(row.seq, arrived.worker, None, 0, 0, None, None, None, None, now, now)


def _let_go(connection: Connection, row: FederationRow, arrived: Arrived) -> None:
    sent = [arrived.model_digest, arrived.upload_digest or ""]
    artifacts.unpin_files(connection, sent, senders(row.id, arrived.worker))


def _store(
    connection: Connection, row: FederationRow, current: RoundRow, arrived: Arrived, doubt: str | None, now: float
) -> tuple[UpdateRow, UpdateRow | None]:
    """Store an update, and return it with the one whose place it takes."""
    counts = doubt is None and verbs.takes(current, arrived.worker)
    state = DISCARDED if doubt is not None else COUNTED if counts else WAITING
    number = current.number if counts or doubt else None
    older = None if doubt is not None else federation_updates.standing(connection, row.seq, arrived.worker, number)
    if older is not None and _is_late(older, arrived):
        return _store(connection, row, current, arrived, LATE, now)
    if doubt is None:
        weighed = _weighed(connection, row, older, arrived)
        if weighed is None:
            return _store(connection, row, current, arrived, COUNTED_BEFORE, now)
        arrived = weighed
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
        new = new._replace(num_examples=rows_of_both(connection, row, older, new))
        # Out of the way first: a worker has one update in a round.
        federation_updates.change(connection, [older.seq], {"state": DISCARDED})
    stored = federation_updates.insert_one(connection, new)
    if older is not None:
        verbs.supersede(connection, older, stored.seq, now)
    files = [arrived.model_digest, *arrived.tokenizer.values()]
    artifacts.hold(connection, files, holder=stored.holder, until=FOREVER)
    return stored, older


def _is_late(older: UpdateRow, arrived: Arrived) -> bool:
    """Whether an update was on its way while one that the same attempt made after it came in."""
    if arrived.attempt is None or arrived.attempt != older.attempt:
        return False  # whoever counts no attempts may have begun anew
    if arrived.rows_after is None or older.rows_after is None:
        return False
    return arrived.rows_after < older.rows_after


def _weighed(connection: Connection, row: FederationRow, older: UpdateRow | None, arrived: Arrived) -> Arrived | None:
    """Take out of an update the rows that other updates of its training weigh already; None if no row is left.

    A training that goes on elsewhere from an older checkpoint trains on some rows again, and may not have heard yet
    what was taken before it was broken off. Whoever counts no attempts may have begun another training instead.
    """
    if arrived.attempt is None or arrived.rows_before is None or arrived.rows_after is None:
        return arrived
    apart = None if older is None else older.seq
    before = max(federation_updates.rows_taken(connection, row.seq, arrived.worker, apart=apart), arrived.rows_before)
    left = arrived.rows_after - before
    return None if left <= 0 else replace(arrived, rows_before=before, num_examples=left)


def _remember(connection: Connection, member: MemberRow, stored: UpdateRow, arrived: Arrived, now: float) -> None:
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


def _own_rows(stored: UpdateRow, arrived: Arrived) -> int:
    """Return how many rows are new in an update: without those that were taken out, or of the one that it replaces."""
    if stored.rows_before is None or stored.rows_after is None:
        return arrived.num_examples
    return stored.rows_after - stored.rows_before


def _dated(connection: Connection, row: FederationRow, current: RoundRow, now: float) -> RoundRow:
    """Return a round whose time runs: it does from the first update."""
    if current.deadline_at is not None:
        return current
    return rounds.change(connection, current, {"deadline_at": now + spec_of(row).deadline_s})


def _same_name(replaced: UpdateRow) -> str:
    return (
        f"It counts instead of update {replaced.seq}, which came before it under the name {replaced.worker} and had "
        f"reached step {replaced.step}. If two machines use this name, give each one its own."
    )


def _told(row: FederationRow, stored: UpdateRow, current: RoundRow | None, *, closes: bool) -> Accepted:
    counted = stored.state not in {WAITING, SUPERSEDED, DISCARDED, REJECTED}
    at, warning = stored.round or row.round, None
    if stored.state == WAITING:
        drawn = current is not None and current.status != RoundStatus.SAMPLING
        at = row.round + 1 if drawn else row.round
        status = f"Round {row.round} is {current.status} and does not take it. " if current and drawn else ""
        warning = f"{status}This update counts in round {at}, if {stored.worker} takes part in that."
    elif not counted:
        warning = stored.reason
    elif row.status == PAUSED:
        warning = (
            f"The federation is paused; the update counts in round {at}, which does not close before "
            f"`tunefleet federation start {row.id}`."
        )
    return Accepted(stored, counted, closes, at, row.version, warning)
