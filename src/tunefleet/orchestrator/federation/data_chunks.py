"""Chunks of a federation's data: claims, leases and downloads.

A chunk is leased to one worker at a time. Claims and uploads of that worker renew the lease; when it expires, the chunk
goes to the next worker that asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tunefleet.db import Connection
from tunefleet.db.federations import federation_chunks, federations
from tunefleet.db.federations.federation_chunks import FREE, ChunkRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ConflictError, ForbiddenError, GoneError, NotFoundError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import delegated_access
from tunefleet.orchestrator.federation.chunk_files import ChunkFile
from tunefleet.orchestrator.federation.delegated_access import Signer
from tunefleet.orchestrator.federation.participants import FederationCaller, only_worker, worker_name
from tunefleet.orchestrator.federation.status import FOREVER, find_to_take_part, how_to_start
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.orchestrator.views import to_datetime
from tunefleet.schemas.federated import ChunkClaimed, ClaimChunk, JobWorker

# How long a worker may send nothing before its chunk goes to another worker.
LEASE_S: Final = 1800.0


def add(connection: Connection, federation: FederationRow, pieces: Sequence[ChunkFile]) -> None:
    """Add chunks to a new federation, and pin their files until it is deleted."""
    rows = [
        ChunkRow(federation.seq, number, each.digest, each.size_bytes, each.rows, FREE, None, None, 0, None)
        for number, each in enumerate(pieces)
    ]
    federation_chunks.insert_all(connection, rows)
    holder = federation_chunks.holder(federation.id)
    artifacts.pin(connection, [each.digest for each in pieces], holder=holder, until=FOREVER)


async def claim(
    core: ServerContext, caller: FederationCaller, reference: str, body: ClaimChunk, sign: Signer
) -> ChunkClaimed:
    """Lease a chunk to a worker: the one that it already has, else the first free one.

    Raises:
        ConflictError: If the federation is not running, or the completed chunk now belongs to another worker.
    """
    worker = worker_name(body.worker_id)

    def operation(connection: Connection) -> ChunkClaimed | None:
        federation = find_to_take_part(connection, caller, reference, worker)
        refuse_idle(federation)
        now = core.clock.wall()
        if body.completed_chunk is not None:
            _finish(connection, federation, worker, body.completed_chunk, now)
        chunk = _next(connection, federation, worker, now)
        if chunk is None:
            return None
        return ChunkClaimed(
            worker=JobWorker(id=worker, worker_id=worker, assigned_chunk=chunk.number, status="assigned"),
            chunk_index=chunk.number,
            chunk_path=delegated_access.chunk_path(reference, chunk.number),
            download_url=sign.chunk(federation.id, reference, chunk.number, chunk.digest),
            sha256=chunk.digest,
            rows=chunk.rows,
            lease_until=to_datetime(now + LEASE_S),
        )

    claimed = await core.write(operation)
    if claimed is None:
        # Raised after the commit, so that the worker's completed chunk is recorded.
        raise NotFoundError(f"Federation {reference} has no free chunk left.")
    return claimed


def renew_lease(connection: Connection, federation_seq: int, worker: str, now: float) -> None:
    """Renew the lease of a worker that has just sent something, if it has a chunk."""
    mine = federation_chunks.held_by(connection, federation_seq, worker)
    if mine is not None:
        federation_chunks.renew(connection, mine, until=now + LEASE_S)


async def get(
    core: ServerContext, caller: FederationCaller | None, reference: str, number: int, signature: Signature | None
) -> ChunkRow:
    """Find a chunk, for a participant or a caller with a valid link.

    Raises:
        ForbiddenError: If the link is not valid, the caller may not take part, or its token is another worker's.
    """

    def operation(connection: Connection) -> ChunkRow:
        federation = (
            linked(connection, reference) if caller is None else find_to_take_part(connection, caller, reference)
        )
        chunk = federation_chunks.get(connection, federation.seq, number)
        if chunk is None:
            raise NotFoundError(f"Federation {federation.id} has no chunk {number}.")
        mine = None if caller is None else only_worker(caller)
        if mine is not None and chunk.worker != mine:
            raise ForbiddenError(
                f"Chunk {number} of {federation.id} is not assigned to {mine}.",
                hint=f"POST {delegated_access.TRAINING}/jobs/{federation.id}/claim-chunk claims one.",
            )
        if caller is None:
            assert signature is not None
            delegated_access.verify_chunk(core, federation.id, number, chunk.digest, signature)
        return chunk

    return await core.read(operation)


def refuse_idle(federation: FederationRow) -> None:
    """Raise unless the federation is running."""
    status = FederationStatus(federation.status)
    if status.final:
        raise GoneError(f"Federation {federation.id} is {status.value}.")
    if status is not FederationStatus.RUNNING:
        raise ConflictError(
            f"Federation {federation.id} is {status.value}.",
            hint=how_to_start(federation),
        )


def _finish(connection: Connection, federation: FederationRow, worker: str, number: int, now: float) -> None:
    chunk = federation_chunks.get(connection, federation.seq, number)
    if chunk is None:
        raise NotFoundError(f"Federation {federation.id} has no chunk {number}.")
    if chunk.state == federation_chunks.DONE and chunk.worker == worker:
        return  # a retry of the same request
    if not federation_chunks.finish(connection, federation.seq, worker, number, now=now):
        raise ConflictError(
            f"Chunk {number} is no longer assigned to {worker}: its lease expired, and another worker has it.",
            hint="Claim the next one, without `completedChunk`.",
        )


def _next(connection: Connection, federation: FederationRow, worker: str, now: float) -> ChunkRow | None:
    mine = federation_chunks.held_by(connection, federation.seq, worker)
    if mine is not None and federation_chunks.renew(connection, mine, until=now + LEASE_S):
        return mine
    return federation_chunks.claim(connection, federation.seq, worker, now=now, until=now + LEASE_S)


def linked(connection: Connection, reference: str) -> FederationRow:
    """Return the federation of a link, before the link is verified."""
    row = federations.find(connection, None, reference)
    if row is None:
        raise NotFoundError(f"Federation {reference} not found.", hint="`tunefleet federation ls` lists them.")
    return row
