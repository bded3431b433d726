"""Publish the result of a round: artifact, version, event and callbacks, exactly once.

One transaction, which only the round's lease holder can commit. The archive is built on first request, or here if there
are callbacks: they contain its digest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.artifacts import manifest_digest
from tunefleet.db import Connection, wake
from tunefleet.db.federations import federation_updates, federation_versions, federations
from tunefleet.db.federations import rounds as rows
from tunefleet.db.federations.federation_updates import AGGREGATED, DISCARDED, REJECTED, UpdateRow
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federation_versions import holder as version_holder
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts
from tunefleet.lifecycle.round import RoundReason
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import adapter_files, aggregation, rounds
from tunefleet.orchestrator.federation.adapter_files import archived, keep_archive
from tunefleet.orchestrator.federation.aggregation import AggregationInput, AggregationResult
from tunefleet.orchestrator.federation.status import FOREVER, publish_event, spec_of
from tunefleet.orchestrator.ids import new_id
from tunefleet.orchestrator.notifications import federation_webhooks
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import ADAPTER_FILE, Contribution, Losses, Refusal
from tunefleet.schemas.notify import ToldVersion

KIND: Final = "adapter"


async def run(core: ServerContext, work: AggregationInput, holder: str) -> VersionRow | None:
    """Publish the stored result of a round.

    Raises:
        TunefleetError: If the store does not respond or is full.
    """
    assert work.round.result is not None, "an aggregated round has a result"
    result = AggregationResult.load(work.round.result)
    archive = await _archive_for_callbacks(core, work, result)
    return await core.write(partial(_publish, core=core, work=work, result=result, archive=archive, holder=holder))


async def store_and_publish(
    core: ServerContext, work: AggregationInput, result: AggregationResult, holder: str
) -> VersionRow | None:
    """Store the result of a round and publish it in the same transaction; returns and raises what `run` does."""
    archive = await _archive_for_callbacks(core, work, result)

    def operation(connection: Connection) -> VersionRow | None:
        now = core.clock.wall()
        moved = aggregation.store(connection, blobs=core.blobs, work=work, result=result, holder=holder, now=now)
        if moved is None:
            return None
        aggregated = replace(work, round=moved)
        return _publish(connection, core=core, work=aggregated, result=result, archive=archive, holder=holder)

    return await core.write(operation)


async def _archive_for_callbacks(
    core: ServerContext, work: AggregationInput, result: AggregationResult
) -> FileEntry | None:
    """Build the archive if there are callbacks, which contain its digest."""
    has_callbacks = await core.read(partial(federation_webhooks.are_wanted, row=work.federation))
    return await asyncio.to_thread(archived, core.blobs, result.files) if has_callbacks else None


def topic(federation_id: str) -> str:
    """Return the topic of a federation's new versions, separate so that other changes do not wake its pollers."""
    return f"federation-versions:{federation_id}"


def _publish(
    connection: Connection,
    *,
    core: ServerContext,
    work: AggregationInput,
    result: AggregationResult,
    archive: FileEntry | None,
    holder: str,
) -> VersionRow | None:
    now = core.clock.wall()
    row = federations.by_seq(connection, work.federation.seq, lock=True)
    if row is None:
        return None
    number = row.version + 1
    changes = {"version": number, "result": None}
    moved = rows.move(connection, work.round, RoundReason.VERSION_STORED, now, holder=holder, values=changes)
    if moved is None:
        return None
    if archive is not None:
        keep_archive(connection, core.blobs, row, archive, now)
    version = _version(connection, row, number, work, result, archive, now)
    federation_versions.insert_one(connection, version)
    extra = [each.digest for each in (archive, result.state) if each is not None]
    pinned = [*extra, *(each.digest for each in result.files)]
    # Pinned before the round's pin is removed: the files must never be without a holder.
    artifacts.hold(connection, pinned, holder=version_holder(row.id, number), until=FOREVER)
    artifacts.unpin(connection, [rounds.result_holder(row.id, moved.number), *(each.holder for each in work.updates)])
    settled = [digest for each in work.updates for digest in (each.model_digest, each.upload_digest) if digest]
    # The uploads are part of the version now. Files that another update shares stay, because they are pinned.
    adapter_files.drop(connection, core.blobs, settled, now)
    federations.change(connection, row.seq, {"version": number})
    row = row._replace(version=number)
    announced(connection, core, row, version, now, took_s=rounds.duration_s(work.round, now))
    rounds.open_next(connection, row, now)
    return version


def announced(
    connection: Connection,
    core: ServerContext,
    row: FederationRow,
    version: VersionRow,
    now: float,
    *,
    took_s: float | None = None,
) -> None:
    """Announce a version that was just stored, by an event and by callbacks.

    Args:
        took_s: How long its round was open, in seconds; None if it is not from a round.
    """
    model = next(digest for path, digest, _ in orjson.loads(version.files) if path == ADAPTER_FILE)
    version_data = {
        "version": version.version, "round": version.round, "equals": version.equals, "sha256": model,
        "archive_sha256": version.archive_digest, "contributors": orjson.loads(version.summary)["contributors"],
    }  # fmt: skip
    of_round: dict[str, Any] = {} if took_s is None else {"took_s": took_s}
    publish_event(connection, row, "federation.version", now, **version_data, **of_round)
    wake(connection, topic(row.id))
    payload = ToldVersion(id=row.id, number=row.seq, name=row.name, **version_data)
    federation_webhooks.announce(connection, row, payload, now, base_url=core.settings.public_base_url)


def _version(
    connection: Connection,
    row: FederationRow,
    number: int,
    work: AggregationInput,
    result: AggregationResult,
    archive: FileEntry | None,
    now: float,
) -> VersionRow:
    spec = spec_of(row)
    contributions = _contributions(connection, work.updates, result.report, now)
    refused = _refused(connection, row, work, result.report)
    summary = {**_summary(contributions), "truncation_error": result.report["error"]}
    report = {
        "contributions": [each.model_dump() for each in contributions],
        "refused": [each.model_dump() for each in refused],
        "report": result.report,
    }
    name = f"{row.id}-v{number}"
    artifact_id = _artifact(connection, row, name, result.files, {"version": number, "round": work.round.number}, now)
    return VersionRow(
        row.seq, number, work.round.number, None, artifact_id, spec.strategy.name,
        _json([(each.path, each.digest, each.size_bytes) for each in result.files]),
        None if archive is None else archive.digest, None if archive is None else archive.size_bytes,
        None if result.state is None else result.state.digest, _json(summary), _json(report), now,
    )  # fmt: skip


def _contributions(
    connection: Connection, updates: Sequence[UpdateRow], report: dict[str, Any], now: float
) -> list[Contribution]:
    """Settle the updates of a round, and return each contribution."""
    weights, excluded, norms = report["weights"], report["excluded"], report["norms"]
    outcomes = [(each.seq, float(weights.get(each.worker, 0.0)), excluded.get(each.worker)) for each in updates]
    federation_updates.settle(connection, outcomes, state=AGGREGATED, now=now)
    return [
        Contribution(
            worker=each.worker, update=each.seq, step=each.step, num_examples=each.num_examples,
            base_version=each.base_version, weight=weight, norm=norms.get(each.worker, each.norm),
            losses=Losses(before=each.loss_before, after=each.loss_after),
        )
        for each, (_, weight, reason) in zip(updates, outcomes, strict=True)
        if reason is None
    ]  # fmt: skip


def _refused(
    connection: Connection, row: FederationRow, work: AggregationInput, report: dict[str, Any]
) -> list[Refusal]:
    """Return the updates that did not count, with the reasons."""
    seqs = {each.worker: each.seq for each in work.updates}
    left_out = [
        Refusal(worker=worker, update=seqs.get(worker), reason=reason) for worker, reason in report["excluded"].items()
    ]
    others = federation_updates.of_round(connection, row.seq, work.round.number, [REJECTED, DISCARDED])
    return left_out + [Refusal(worker=each.worker, update=each.seq, reason=each.reason or "") for each in others]


def _summary(contributions: Sequence[Contribution]) -> dict[str, Any]:
    before = _mean([(each.weight, each.losses.before) for each in contributions])
    after = _mean([(each.weight, each.losses.after) for each in contributions])
    return {
        "contributors": [each.worker for each in contributions],
        "num_examples": sum(each.num_examples for each in contributions),
        "step": max((each.step for each in contributions), default=0),
        "losses": {"before": before, "after": after},
    }


def _mean(weighted: Iterable[tuple[float, float | None]]) -> float | None:
    """Return the weighted mean of the known losses; None if none is known."""
    known = [(weight, loss) for weight, loss in weighted if loss is not None]
    total = sum(weight for weight, _ in known)
    return sum(weight * loss for weight, loss in known) / total if total > 0 else None


def _artifact(
    connection: Connection, row: FederationRow, name: str, made: Sequence[FileEntry], about: dict[str, Any], now: float
) -> str:
    id_ = new_id("art")
    values = {
        "id": id_, "project": row.project, "name": name, "kind": KIND, "digest": manifest_digest(made),
        "size_bytes": sum(each.size_bytes for each in made), "file_count": len(made), "task_id": None,
        "attempt_id": None, "owner": row.owner, "created_at": now, "metadata": _json({"federation": row.id, **about}),
    }  # fmt: skip
    artifacts.insert_one(connection, values, [(each.path, each.digest, each.size_bytes) for each in made])
    return id_


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
