"""API views of federations, rounds, members, updates and versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federations, rounds
from tunefleet.db.federations.federation_updates import UpdateRow
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federations import FederationRow, MemberRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.db.repositories import tasks
from tunefleet.lifecycle.round import RoundStatus
from tunefleet.orchestrator.federation.participants import FederationCaller
from tunefleet.orchestrator.federation.rounds import participants
from tunefleet.orchestrator.federation.status import may_read_all_updates, may_read_updates, spec_of
from tunefleet.orchestrator.federation.updates.acceptance import HARMLESS
from tunefleet.orchestrator.notifications.channels import shown
from tunefleet.orchestrator.views import to_datetime, to_optional_datetime
from tunefleet.schemas.federated import (
    ADAPTER_FILE,
    CheckpointMark,
    FederationDetail,
    FederationView,
    Losses,
    MemberView,
    RoundView,
    UpdateView,
    VersionDetail,
    VersionFile,
    VersionView,
)

# How many rounds are shown with their federation.
NEWEST_ROUNDS = 10


def federation_view(connection: Connection, row: FederationRow, caller: FederationCaller) -> FederationView:
    """Show a federation in a list."""
    return FederationView(**_fields(connection, row, caller))


def federation_detail(connection: Connection, row: FederationRow, caller: FederationCaller) -> FederationDetail:
    """Show everything about a federation that the caller may see."""
    newest = rounds.newest(connection, row.seq, limit=NEWEST_ROUNDS)
    return FederationDetail(
        **_fields(connection, row, caller),
        spec=spec_of(row).model_dump(mode="json", exclude_none=True),
        contract=None if row.contract is None else orjson.loads(row.contract),
        member_list=member_views(connection, row, caller),
        rounds=tuple(round_views(connection, row, newest, caller)),
    )


def _fields(connection: Connection, row: FederationRow, caller: FederationCaller) -> dict[str, Any]:
    spec = spec_of(row)
    current = rounds.get(connection, row.seq, row.round)
    contract = {} if row.contract is None else orjson.loads(row.contract)
    return {
        "id": row.id,
        "number": row.seq,
        "name": row.name,
        "owner": row.owner,
        "status": row.status,
        "why": None if current is None else round_views(connection, row, [current], caller)[0].why,
        "base_model": spec.base_model or contract.get("base_model"),
        "strategy": spec.strategy.name,
        "task_id": _task_id(connection, row),
        "version": row.version,
        "round": row.round or None,
        "members": federations.member_counts(connection, [row.seq]).get(row.seq, 0),
        "created_at": to_datetime(row.created_at),
        "started_at": to_optional_datetime(row.started_at),
        "finished_at": to_optional_datetime(row.finished_at),
    }


def _task_id(connection: Connection, row: FederationRow) -> str | None:
    found = [] if row.task_seq is None else tasks.by_seqs(connection, [row.task_seq])
    return found[0].id if found else None


def round_views(
    connection: Connection, row: FederationRow, rows: Sequence[RoundRow], caller: FederationCaller
) -> list[RoundView]:
    """Show rounds of a federation, without the errors of updates that the caller may not see."""
    shows_errors = may_read_all_updates(caller, row)
    workers = federation_updates.workers_of_rounds(connection, row.seq, [each.number for each in rows])
    return [_round(row, each, workers.get(each.number, []), shows_errors=shows_errors) for each in rows]


def _round(row: FederationRow, round_row: RoundRow, workers: Sequence[str], *, shows_errors: bool) -> RoundView:
    return RoundView(
        number=round_row.number,
        status=cast(Any, round_row.status),
        why=_why(row, round_row, workers, shows_errors=shows_errors),
        participants=participants(round_row),
        uploaded=tuple(workers),
        version=round_row.version,
        opened_at=to_datetime(round_row.opened_at),
        deadline_at=to_optional_datetime(round_row.deadline_at),
        closed_at=to_optional_datetime(round_row.closed_at),
        finished_at=to_optional_datetime(round_row.finished_at),
    )


def _why(row: FederationRow, round_row: RoundRow, workers: Sequence[str], *, shows_errors: bool) -> str | None:
    status = RoundStatus(round_row.status)
    if status is RoundStatus.SAMPLING:
        return f"The federation is {row.status}."
    if status is not RoundStatus.COLLECTING:
        again = "Retrying: " if round_row.error and not status.final else ""
        error = round_row.error if shows_errors or not round_row.error else "The updates could not be aggregated."
        return f"{again}{error}" if error else None
    names, spec = participants(round_row), spec_of(row)
    wanted = spec.min_workers if names is None else len(names)
    text = f"{len(workers)} of {wanted} updates received."
    missing = sorted(set(names or ()) - set(workers))
    if missing and workers:
        text += f" Waiting for {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}."
    return text if row.status == "running" else f"{text} The federation is {row.status}."


def member_views(connection: Connection, row: FederationRow, caller: FederationCaller) -> tuple[MemberView, ...]:
    """Show the workers of a federation; only names and times of those whose updates the caller may not see."""
    refused = {
        worker: why
        for worker, why in federation_updates.refused_last(connection, row.seq).items()
        if why not in HARMLESS
    }
    return tuple(
        member_view(each).model_copy(update={"refused": refused.get(each.worker)})
        if may_read_updates(caller, row, each.worker)
        else MemberView(worker=each.worker, joined_at=to_datetime(each.joined_at), seen_at=to_datetime(each.seen_at))
        for each in federations.members(connection, row.seq)
    )


def member_view(row: MemberRow, rows_taken: int | None = None) -> MemberView:
    """Show a worker of a federation."""
    return MemberView(
        worker=row.worker,
        callback_url=None if row.callback_url is None else shown(row.callback_url),
        updates=row.updates,
        num_examples=row.num_examples,
        step=row.step,
        round=row.round,
        loss=row.loss,
        attempt=row.attempt,
        rows_taken=rows_taken,
        joined_at=to_datetime(row.joined_at),
        seen_at=to_datetime(row.seen_at),
    )


def update_view(row: UpdateRow) -> UpdateView:
    """Show an update."""
    return UpdateView(
        id=row.seq,
        worker=row.worker,
        round=row.round,
        state=cast(Any, row.state),
        reason=row.reason,
        step=row.step,
        num_examples=row.num_examples,
        base_version=row.base_version,
        sha256=row.upload_digest,
        upload_dtype=cast(Any, row.upload_dtype),
        size_bytes=row.size_bytes,
        norm=row.norm,
        weight=row.weight,
        losses=Losses(before=row.loss_before, after=row.loss_after),
        attempt=row.attempt,
        created_at=to_datetime(row.created_at),
    )


def version_view(row: VersionRow) -> VersionView:
    """Show a version in a list."""
    return VersionView(**_version(row))


def version_detail(row: VersionRow, federation: FederationRow, caller: FederationCaller) -> VersionDetail:
    """Show a version with its report, without updates that the caller may not see and comparisons with them."""
    files = [VersionFile(path=path, sha256=digest, size_bytes=size) for path, digest, size in orjson.loads(row.files)]
    made = VersionDetail.model_validate(
        {
            **_version(row),
            **orjson.loads(row.report),
            "losses": orjson.loads(row.summary)["losses"],
            "files": files,
        }
    )
    if may_read_updates(caller, federation, ""):
        return made
    return made.model_copy(
        update={
            "contributions": tuple(
                each for each in made.contributions if may_read_updates(caller, federation, each.worker)
            ),
            "refused": tuple(each for each in made.refused if may_read_updates(caller, federation, each.worker)),
            "report": {},
        }
    )


def _version(row: VersionRow) -> dict[str, Any]:
    summary = orjson.loads(row.summary)
    model = next(each for each in orjson.loads(row.files) if each[0] == ADAPTER_FILE)
    return {
        "version": row.version,
        "round": row.round,
        "equals": row.equals,
        "strategy": row.strategy,
        "contributors": summary["contributors"],
        "num_examples": summary["num_examples"],
        "step": summary["step"],
        "loss": summary["losses"]["after"],
        "truncation_error": summary.get("truncation_error"),
        "sha256": model[1],
        "size_bytes": model[2],
        "archive_sha256": row.archive_digest,
        "archive_size_bytes": row.archive_size_bytes,
        "artifact_id": row.artifact_id,
        "created_at": to_datetime(row.created_at),
    }


def checkpoint_mark(row: VersionRow) -> CheckpointMark:
    """Show a version in the upload guide's schema."""
    summary = orjson.loads(row.summary)
    return CheckpointMark(
        step=summary["step"],
        timestamp=to_datetime(row.created_at),
        round=row.round,
        contributors=summary["contributors"],
        strategy=row.strategy,
    )
