"""Versions of a federation's adapter: list, wait for the next one, download, roll back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_versions, federations
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ConflictError, NotFoundError
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.lifecycle.round import RoundReason
from tunefleet.orchestrator.access.permissions import FederationActor
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import data_chunks, delegated_access, rounds, version_publisher, views
from tunefleet.orchestrator.federation.adapter_files import with_archive
from tunefleet.orchestrator.federation.participants import FederationCaller, may_manage, may_view
from tunefleet.orchestrator.federation.status import FOREVER, existing, find
from tunefleet.orchestrator.notifications import federation_webhooks
from tunefleet.orchestrator.storage.signed_urls import Signature
from tunefleet.orchestrator.views import before_cursor, bounded_limit
from tunefleet.schemas.api import FileEntry, Page
from tunefleet.schemas.federated import VersionDetail, VersionView

# Waiting requests check this often even without a notification: another server may publish the version.
LOOK_S: Final = 5.0


@dataclass(slots=True)
class PendingLookups:
    """Pending look-ups of newest versions, by project, federation and the pub/sub version when they started."""

    newest: dict[tuple[str, str, int], asyncio.Future[Any]] = field(default_factory=dict)


async def list_(
    core: ServerContext, caller: FederationCaller, reference: str, *, limit: int = 50, cursor: str | None = None
) -> Page[VersionView]:
    """Return versions, newest first."""
    start, count = before_cursor(cursor), bounded_limit(limit)

    def operation(connection: Connection) -> Page[VersionView]:
        row = find(connection, caller, reference)
        found = federation_versions.page(connection, row.seq, limit=count + 1, before=start)
        shown = tuple(views.version_view(each) for each in found[:count])
        next_cursor = str(shown[-1].version) if len(found) > count else None
        return Page[VersionView](items=shown, next_cursor=next_cursor)

    return await core.read(operation)


async def get(core: ServerContext, caller: FederationCaller, reference: str, version: int) -> VersionDetail:
    """Return a version with its report."""

    def operation(connection: Connection) -> VersionDetail:
        row = find(connection, caller, reference)
        return views.version_detail(version_of(connection, row, version), row, caller)

    return await core.read(operation)


def version_of(connection: Connection, row: FederationRow, version: int | None = None) -> VersionRow:
    """Return a version of a federation; by default the newest."""
    found = federation_versions.get(connection, row.seq, row.version if version is None else version)
    if found is None and version is None:
        raise NotFoundError(
            f"Federation {row.id} has no version yet.",
            hint=f"Its first round publishes one; `tunefleet federation show {row.id}` shows what it is waiting for.",
        )
    if found is None:
        raise NotFoundError(
            f"Federation {row.id} has no version {version}; its newest is {row.version}.",
            hint=f"`tunefleet federation versions {row.id}` lists them.",
        )
    return found


async def newest(
    core: ServerContext, caller: FederationCaller, reference: str, *, after: int = 0, wait_s: float = 0.0
) -> VersionRow | None:
    """Return the newest version once it is newer than `after`; None if none is published in time.

    Args:
        after: The version that the caller has; 0 for none.
    """
    # A token contains its federation's id, which saves a read for each poll; a key may refer to it by its number.
    if isinstance(caller, FederationActor):
        id_ = caller.federation_id
    else:
        id_ = (await core.read(partial(find, caller=caller, reference=reference))).id
    end = core.clock.monotonic() + wait_s
    while True:
        # Read the topic's version first, so that a publication during the read ends the wait below.
        seen = core.signals.version(version_publisher.topic(id_))
        row, found = await _look(core, caller.project, reference, seen)
        may_view(caller, row)
        left = end - core.clock.monotonic()
        if row.version > after and found is not None:
            return found
        if left <= 0 or core.signals.closed:
            return None
        await core.signals.wait(version_publisher.topic(id_), min(left, LOOK_S), seen)


async def _look(
    core: ServerContext, project: str, reference: str, seen: int
) -> tuple[FederationRow, VersionRow | None]:
    """Return a federation and its newest version; concurrent pollers share one read."""
    key = project, reference, seen
    look = core.state(PendingLookups).newest.get(key)
    if look is None:
        look = asyncio.ensure_future(core.read(partial(_newest, project=project, reference=reference)))
        core.state(PendingLookups).newest[key] = look
        look.add_done_callback(lambda _: core.state(PendingLookups).newest.pop(key))
    # Shielded: a client that disconnects must not cancel the read of the others.
    return await asyncio.shield(look)


def _newest(connection: Connection, *, project: str, reference: str) -> tuple[FederationRow, VersionRow | None]:
    row = existing(connection, project, reference)
    return row, federation_versions.get(connection, row.seq, row.version) if row.version else None


async def rollback(core: ServerContext, caller: FederationCaller, reference: str, version: int) -> VersionView:
    """Publish an earlier version again under a new number: workers look for greater numbers.

    Updates for the open round are discarded: they were trained on the version that is undone.

    Raises:
        ForbiddenError: If the federation belongs to another user.
        ConflictError: If the version is already the newest one.
    """
    target, has_callbacks = await core.read(partial(_target, caller=caller, reference=reference, version=version))
    if has_callbacks:
        await with_archive(core, target)
    made = await core.write(partial(_roll_back, core=core, caller=caller, reference=reference, version=version))
    return views.version_view(made)


def _target(
    connection: Connection, *, caller: FederationCaller, reference: str, version: int
) -> tuple[VersionRow, bool]:
    row = find(connection, caller, reference)
    may_manage(caller, row)
    return version_of(connection, row, version), federation_webhooks.are_wanted(connection, row)


def _roll_back(
    connection: Connection, *, core: ServerContext, caller: FederationCaller, reference: str, version: int
) -> VersionRow:
    row, now = find(connection, caller, reference, lock=True), core.clock.wall()
    may_manage(caller, row)
    target = version_of(connection, row, version)
    if target.version == row.version:
        raise ConflictError(f"Version {version} is already the newest one of {row.id}.")
    rounds.abandon(
        connection, row, RoundReason.ROLLED_BACK, f"The federation was rolled back to version {target.version}.", now
    )
    # Shares the target's files: nothing is copied.
    made = target._replace(version=row.version + 1, round=None, equals=target.version, created_at=now)
    federation_versions.insert_one(connection, made)
    extra = [digest for digest in (made.archive_digest, made.state_digest) if digest is not None]
    digests = [*extra, *(digest for _, digest, _ in orjson.loads(made.files))]
    holder = federation_versions.holder(row.id, made.version)
    artifacts.pin(connection, digests, holder=holder, until=FOREVER)
    federations.change(connection, row.seq, {"version": made.version})
    row = row._replace(version=made.version)
    version_publisher.announced(connection, core, row, made, now)
    if not FederationStatus(row.status).final and row.round:
        rounds.open_next(connection, row, now)
    return made


async def download_archive(
    core: ServerContext,
    caller: FederationCaller | None,
    reference: str,
    version: int | None,
    signature: Signature | None,
) -> tuple[VersionRow, FileEntry]:
    """Find a version and its archive, for a caller with read access or a valid link.

    Raises:
        ForbiddenError: If the link is not valid, or the caller has no access.
    """

    def operation(connection: Connection) -> VersionRow:
        row = data_chunks.linked(connection, reference) if caller is None else find(connection, caller, reference)
        found = version_of(connection, row, version)
        if caller is None:
            assert signature is not None, "requests with neither key nor link are refused before"
            # Links are signed over the archive's digest, so that none is valid for an archive that was never made.
            delegated_access.verify_version(core, row.id, found.version, found.archive_digest or "", signature)
        return found

    return await with_archive(core, await core.read(operation))


async def download_file(
    core: ServerContext, caller: FederationCaller, reference: str, version: int | None, path: str
) -> FileEntry:
    """Find a file of a version."""
    found = await core.read(lambda connection: version_of(connection, find(connection, caller, reference), version))
    return file_of(found, path)


def file_of(version: VersionRow, path: str) -> FileEntry:
    """Return a file of a version.

    Raises:
        NotFoundError: If the version has no such file.
    """
    for name, digest, size_bytes in orjson.loads(version.files):
        if name == path:
            return FileEntry(path=name, digest=digest, size_bytes=size_bytes)
    raise NotFoundError(f"Version {version.version} has no file {path}.")
