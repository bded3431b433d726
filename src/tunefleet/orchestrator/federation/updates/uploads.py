"""Uploads of workers: an archive in one piece, as the upload guide has it, or an update whose file was sent before.

Nothing counts before all of it is checked; what is refused is remembered with its reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import orjson

from tunefleet.db import Connection
from tunefleet.db.federations import federation_versions, federations
from tunefleet.db.federations.federation_updates import senders
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import ArtifactError, GoneError, InputError, OffsetConflict
from tunefleet.lifecycle.federation import FederationStatus
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import adapter_files
from tunefleet.orchestrator.federation.participants import Who, only_worker, worker_name
from tunefleet.orchestrator.federation.status import find_to_take_part, spec_of
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.orchestrator.federation.updates.archive_layout import RECIPE_FOLDER, is_tokenizer, open_archive
from tunefleet.orchestrator.federation.updates.intake import (
    Content,
    Said,
    Ticket,
    carried,
    in_thread,
    refuse_unknown_base,
    remembering,
    take,
    with_scratch,
)
from tunefleet.orchestrator.federation.updates.scratch import Landing, Scratch, too_large
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.artifacts import refuse_upload
from tunefleet.schemas.federated import ADAPTER_FILE, Losses, UpdateCreate
from tunefleet.spec.options.federation_options import FederationSpec

# How long a file is kept for the update that will name it.
PIN_S: Final = 24 * 3600.0
# What may stand beside the archive.
FIELDS: Final = ("numExamples", "round", "baseVersion", "sha256", "loss", "lossBefore")
_WHOLE: Final = re.compile(r"[0-9]{1,15}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_WIDTH: Final = 4
"""Bytes of a float for each byte of an upload in 8 bits."""
# With so many of the newest versions an `aggregated/` folder is compared.
_KNOWN_VERSIONS: Final = 20


async def expect(core: Core, who: Who, reference: str, worker: str, step: int) -> Ticket:
    """Look, before a body is read, whether an upload can count.

    Raises:
        ForbiddenError: If it is none of the asker's business, or the worker does not take part.
        GoneError: If the federation has ended.
    """
    name = worker_name(worker)

    def operation(connection: Connection) -> Ticket:
        row = find_to_take_part(connection, who, reference, name)
        acceptance.refuse_upload(connection, row, name)
        return Ticket(row, spec_of(row), name, step)

    return await core.read(operation)


def read_fields(texts: Mapping[str, str], spec: FederationSpec) -> Said:
    """Read what stands beside an archive.

    Raises:
        InputError: If the number of examples is missing or none, or another field cannot be read.
    """
    if "numExamples" not in texts:
        raise InputError("The upload has no field numExamples.", hint="Send how many rows it was trained on.")
    count = _whole("numExamples", texts["numExamples"])
    refuse_count(count, spec)
    if "round" in texts:
        _whole("round", texts["round"])  # when it comes decides in which round it counts
    base = _whole("baseVersion", texts["baseVersion"]) if "baseVersion" in texts else None
    digest = texts.get("sha256")
    if digest is not None and _DIGEST.fullmatch(digest) is None:
        raise InputError("The field sha256 is not 64 hexadecimal digits.")
    return Said(count, base, digest, Losses(before=_loss(texts, "lossBefore"), after=_loss(texts, "loss")))


def refuse_count(count: int, spec: FederationSpec) -> None:
    """Refuse a number of examples that cannot be."""
    if count < 1:
        raise InputError("numExamples is 0: an update counts by the rows that it was trained on.", hint="Send them.")
    if count > spec.max_num_examples:
        raise InputError(
            f"numExamples is {count:,}; this federation takes at most {spec.max_num_examples:,}.",
            hint="Send the rows since the last version, or create the federation with a larger `max_num_examples`.",
        )


def _whole(name: str, text: str) -> int:
    if _WHOLE.fullmatch(text.strip()) is None:
        raise InputError(f"The field {name} is {text[:50]!r}; it must be a whole number, and not negative.")
    return int(text)


def _loss(texts: Mapping[str, str], name: str) -> float | None:
    text = texts.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not abs(value) < float("inf"):
        raise InputError(f"The field {name} is {text[:50]!r}; it must be a finite number.")
    return value


async def take_archive(core: Core, ticket: Ticket, landing: Landing, said: Said) -> Accepted:
    """Unpack, check and take an archive that has arrived.

    Raises:
        AdapterRefused: If the adapter may not take part.
        ArtifactError: If the archive is unsafe or broken, or its digest is not the one that was said.
        TooLargeError: If it unpacks to too much.
    """
    if said.sha256 not in {None, landing.digest}:
        raise ArtifactError("The archive does not have the sha256 that was said.", hint="Upload it again.")
    async with remembering(core, ticket, said, landing):
        into, most = landing.folder / "files", ticket.spec.max_update_bytes
        unpacked = partial(open_archive, landing.file, into, max_bytes=most)
        folder = await carried(ticket.federation, unpacked)
        landing.file.unlink()
        known = await _versions(core, ticket.federation) if (folder / RECIPE_FOLDER).is_dir() else []
        look = partial(_in_archive, core, ticket, folder, known, landing)
        # Versions that it is compared with are fetched one by one, until one is like it.
        content = await (carried(ticket.federation, look) if known else in_thread(look))
        accepted = await take(core, ticket, said, content, landing)
    remark = content.examined.remark
    return accepted if remark is None else replace(accepted, warning=accepted.warning or remark)


def _in_archive(core: Core, ticket: Ticket, folder: Path, known: Sequence[str], landing: Landing) -> Content:
    from tunefleet.orchestrator.federation.updates.validation import examine_archive  # noqa: PLC0415 - NumPy, on first use

    versions = (adapter_files.local(core.blobs, digest, landing.folder) for digest in known)
    examined, found = examine_archive(folder, ticket.spec, ticket.federation.contract, versions)
    return Content(examined, tokenizer=found.tokenizer)


async def _versions(core: Core, federation: FederationRow) -> list[str]:
    """Return the digests of the adapters that workers may have fetched, newest first."""
    rows = await core.read(
        lambda connection: federation_versions.page(connection, federation.seq, limit=_KNOWN_VERSIONS)
    )
    return [digest for row in rows for path, digest, _ in orjson.loads(row.files) if path == ADAPTER_FILE]


async def take_update(core: Core, who: Who, reference: str, body: UpdateCreate) -> Accepted:
    """Check and take an update whose files were uploaded before; a repetition gets the first answer.

    Raises:
        ForbiddenError: If it is none of the asker's business, or the worker does not take part.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        ArtifactError: If a file of it was not uploaded to this federation.
        AdapterRefused: If the adapter may not take part.
    """

    def look(connection: Connection) -> tuple[Ticket, int] | Accepted:
        found = expected(connection, who, reference, body)
        return found if isinstance(found, Accepted) else (found, _sent_bytes(connection, who, found.federation, body))

    found = await core.read(look)
    if isinstance(found, Accepted):
        await _let_go(core, found.update.federation_seq, body)
        return found
    ticket, size_bytes = found
    said = said_in(body)
    async with with_scratch(core, ticket, said, size_bytes) as scratch:
        fetched = partial(adapter_files.local, core.blobs, body.sha256, scratch.folder)
        weights = await carried(ticket.federation, fetched)
        content = await in_thread(partial(content_of, core, ticket, body, weights, scratch))
        return await take(core, ticket, said, content, scratch)


async def _let_go(core: Core, seq: int, body: UpdateCreate) -> None:
    """Hold the files of an update no longer that were sent again after it was taken."""

    def holders(connection: Connection) -> list[str]:
        row = federations.by_seq(connection, seq)
        found = [] if row is None else senders(row.id, body.worker)
        return [each for each in found if artifacts.pinned_by(connection, body.sha256, each)]

    held_by = await core.read(holders)
    if held_by:
        await core.write(lambda connection: artifacts.unpin_files(connection, [body.sha256], held_by))


def expected(connection: Connection, who: Who, reference: str, body: UpdateCreate) -> Ticket | Accepted:
    """Look whether an update can count; one that was taken before gets its answer again.

    Raises:
        ForbiddenError: If it is none of the asker's business, or the worker does not take part.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        InputError: If the number of examples is above what the federation takes.
        AdapterRefused: If it began from a version that there is not.
    """
    row = find_to_take_part(connection, who, reference, body.worker)
    before = acceptance.known(connection, row, body.worker, body.step, body.sha256)
    if before is not None and not acceptance.says_other_rows(before, body.num_examples, body.attempt):
        return before
    acceptance.refuse_upload(connection, row, body.worker, body.attempt)
    ticket = Ticket(row, spec_of(row), body.worker, body.step)
    refuse_count(body.num_examples, ticket.spec)
    refuse_unknown_base(row, body.base_version)
    return ticket


def said_in(body: UpdateCreate) -> Said:
    """Return what an update says of itself."""
    return Said(body.num_examples, body.base_version, None, body.losses, body.attempt, body.rows_before)


def _sent_bytes(connection: Connection, who: Who, federation: FederationRow, body: UpdateCreate) -> int:
    """Return the length of an update's weights, if all of its files were sent to its federation."""
    _refuse_unsent(connection, who, federation, {ADAPTER_FILE: body.sha256})
    refuse_unsent_tokenizer(connection, who, federation, body)
    return artifacts.sizes(connection, federation.project, [body.sha256]).get(body.sha256, 0)


def refuse_unsent_tokenizer(connection: Connection, who: Who, federation: FederationRow, body: UpdateCreate) -> None:
    """Refuse an update with a tokenizer that was not sent to its federation, or that is none."""
    for name in body.tokenizer:
        if not is_tokenizer(name):
            raise InputError(f"{name[:200]!r} is no file of a tokenizer.", hint="Leave it out.")
    _refuse_unsent(connection, who, federation, body.tokenizer)


def _sender(who: Who, federation: FederationRow) -> str:
    """Return who holds what somebody sends for an update; whoever has a token of its own holds alone."""
    return senders(federation.id, only_worker(who))[0]


def _refuse_unsent(connection: Connection, who: Who, federation: FederationRow, files_: Mapping[str, str]) -> None:
    """Refuse files that were not sent to a federation, or by somebody else."""
    for name, digest in files_.items():
        # Who knows a digest does not know the file yet: nobody gets at what others have stored by naming it.
        if not artifacts.pinned_by(connection, digest, _sender(who, federation)):
            raise ArtifactError(
                f"The file {name} ({digest[:12]}…) was not uploaded to this federation.", hint="Upload it first."
            )


def content_of(core: Core, ticket: Ticket, body: UpdateCreate, weights: Path, scratch: Scratch) -> Content:
    """Check an update's weights, and return what they are; it blocks.

    Args:
        scratch: Takes the floats that are made of 8 bits.
    """
    from tunefleet.federation.quantize import unpack  # noqa: PLC0415 - NumPy, on first use
    from tunefleet.orchestrator.federation.updates.validation import examine  # noqa: PLC0415

    config = orjson.dumps(body.config)
    contract = ticket.federation.contract
    if body.upload_dtype != "int8":
        examined = examine(weights, config, ticket.spec, contract, sha256=body.sha256)
        return Content(examined, stored=body.tokenizer, digest=body.sha256)
    core.blobs.expect(_WIDTH * weights.stat().st_size)
    wide = scratch.make() / ADAPTER_FILE
    unpack(weights, wide)
    return Content(examine(wide, config, ticket.spec, contract), stored=body.tokenizer, quantized=body.sha256)


async def expect_file(core: Core, who: Who, reference: str, digest: str, size_bytes: int) -> tuple[FederationRow, bool]:
    """Look whether somebody may send a file for an update.

    Returns:
        The federation, and whether the file was sent to it before by the same sender, and is still kept for it.

    Raises:
        GoneError: If the federation has ended.
        TooLargeError: If the file is longer than an update may be.
        QuotaError: If the federation's project would keep more than it may.
    """

    def operation(connection: Connection) -> tuple[FederationRow, bool]:
        row = find_to_take_part(connection, who, reference)
        if FederationStatus(row.status).final:
            raise GoneError(f"The federation {row.id} is {row.status}; it takes no more updates.")
        most = spec_of(row).max_update_bytes
        if size_bytes > most:
            raise too_large(most)
        if row.task_seq is None:
            refuse_upload(connection, core=core, project=row.project, digest=digest, size_bytes=size_bytes)
        return row, artifacts.pinned_by(connection, digest, _sender(who, row))

    return await core.read(operation)


async def stored_file(core: Core, who: Who, federation: FederationRow, digest: str, size_bytes: int) -> None:
    """Record a file that the store has just verified; it is kept for the update that will name it.

    Raises:
        OffsetConflict: If the file is gone again: upload it anew.
    """

    def operation(connection: Connection) -> None:
        # Files are deleted in this thread only, so that the file cannot go between this look and the commit.
        if not core.blobs.has(digest):
            raise OffsetConflict(f"The file {digest[:12]}… has to be uploaded again.", cursor=0)
        now = core.clock.wall()
        quotas.refuse_update(connection, federation, {digest: size_bytes})
        capacity.add(connection, core.blobs, digest, size_bytes)
        artifacts.add_blob(connection, project=federation.project, digest=digest, size_bytes=size_bytes, at=now)
        artifacts.pin(connection, [digest], holder=_sender(who, federation), until=now + PIN_S)

    await core.write(operation)
