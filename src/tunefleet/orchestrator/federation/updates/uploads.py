"""Uploads of workers: a single archive, as in the upload guide, or an update whose files were uploaded before.

An update counts only after all of it is validated; a rejection is recorded with its reason.
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
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import adapter_files
from tunefleet.orchestrator.federation.participants import FederationCaller, only_worker, worker_name
from tunefleet.orchestrator.federation.status import find_to_take_part, spec_of
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.federation.updates.acceptance import Accepted
from tunefleet.orchestrator.federation.updates.archive_layout import RECIPE_FOLDER, is_tokenizer, open_archive
from tunefleet.orchestrator.federation.updates.intake import (
    Content,
    ExpectedUpload,
    UpdateMetadata,
    in_thread,
    recording_rejection,
    refuse_unknown_base,
    run_transfer,
    take,
    with_scratch,
)
from tunefleet.orchestrator.federation.updates.scratch import Scratch, UploadFile, too_large
from tunefleet.orchestrator.storage import capacity
from tunefleet.orchestrator.storage.artifacts import refuse_upload
from tunefleet.schemas.federated import ADAPTER_FILE, Losses, UpdateCreate
from tunefleet.spec.options.federation_options import FederationSpec

# How long a file is pinned for the update that will refer to it.
PIN_S: Final = 24 * 3600.0
# Form fields that may accompany the archive.
FIELDS: Final = ("numExamples", "round", "baseVersion", "sha256", "loss", "lossBefore")
_INTEGER: Final = re.compile(r"[0-9]{1,15}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
# Bytes of a float32 for each byte of an int8 upload.
_FLOAT_BYTES: Final = 4
# Number of newest versions that an `aggregated/` folder is compared with.
_COMPARED_VERSIONS: Final = 20


async def expect(
    core: ServerContext, caller: FederationCaller, reference: str, worker: str, step: int
) -> ExpectedUpload:
    """Check whether an upload can count, before its body is read.

    Raises:
        ForbiddenError: If the caller has no access, or the worker is not a participant.
        GoneError: If the federation has ended.
    """
    name = worker_name(worker)

    def operation(connection: Connection) -> ExpectedUpload:
        row = find_to_take_part(connection, caller, reference, name)
        acceptance.refuse_upload(connection, row, name)
        return ExpectedUpload(row, spec_of(row), name, step)

    return await core.read(operation)


def read_fields(texts: Mapping[str, str], spec: FederationSpec) -> UpdateMetadata:
    """Read the form fields of an archive upload.

    Raises:
        InputError: If the number of examples is missing or zero, or another field is not valid.
    """
    if "numExamples" not in texts:
        raise InputError("The upload has no field numExamples.", hint="Send the number of rows that it was trained on.")
    count = _integer("numExamples", texts["numExamples"])
    refuse_count(count, spec)
    if "round" in texts:
        _integer("round", texts["round"])  # validated only: the time of arrival decides which round it counts in
    base = _integer("baseVersion", texts["baseVersion"]) if "baseVersion" in texts else None
    digest = texts.get("sha256")
    if digest is not None and _DIGEST.fullmatch(digest) is None:
        raise InputError("The field sha256 is not 64 hexadecimal digits.")
    return UpdateMetadata(count, base, digest, Losses(before=_loss(texts, "lossBefore"), after=_loss(texts, "loss")))


def refuse_count(count: int, spec: FederationSpec) -> None:
    """Raise if a number of examples is out of range."""
    if count < 1:
        raise InputError(
            "numExamples is 0: updates are weighted by the rows that they were trained on.", hint="Send their number."
        )
    if count > spec.max_num_examples:
        raise InputError(
            f"numExamples is {count:,}; this federation accepts at most {spec.max_num_examples:,}.",
            hint="Send the rows since the last version, or create the federation with a larger `max_num_examples`.",
        )


def _integer(name: str, text: str) -> int:
    if _INTEGER.fullmatch(text.strip()) is None:
        raise InputError(f"Field {name} is {text[:50]!r}; it must be a non-negative integer.")
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
        raise InputError(f"Field {name} is {text[:50]!r}; it must be a finite number.")
    return value


async def take_archive(
    core: ServerContext, ticket: ExpectedUpload, landing: UploadFile, metadata: UpdateMetadata
) -> Accepted:
    """Unpack, validate and accept an archive that was received.

    Raises:
        AdapterRefused: If the adapter is not valid for the federation.
        ArtifactError: If the archive is unsafe or corrupt, or does not match the digest that was sent.
        TooLargeError: If its unpacked size exceeds the limit.
    """
    if metadata.sha256 not in {None, landing.digest}:
        raise ArtifactError("The archive does not match the sha256 that was sent.", hint="Upload it again.")
    async with recording_rejection(core, ticket, metadata, landing):
        into, most = landing.folder / "files", ticket.spec.max_update_bytes
        unpacked = partial(open_archive, landing.file, into, max_bytes=most)
        folder = await run_transfer(ticket.federation, unpacked)
        landing.file.unlink()
        known = await _versions(core, ticket.federation) if (folder / RECIPE_FOLDER).is_dir() else []
        look = partial(_in_archive, core, ticket, folder, known, landing)
        # With versions to compare, it may download them one by one, which is slow I/O.
        content = await (run_transfer(ticket.federation, look) if known else in_thread(look))
        accepted = await take(core, ticket, metadata, content, landing)
    remark = content.examined.remark
    return accepted if remark is None else replace(accepted, warning=accepted.warning or remark)


def _in_archive(
    core: ServerContext, ticket: ExpectedUpload, folder: Path, known: Sequence[str], landing: UploadFile
) -> Content:
    from tunefleet.orchestrator.federation.updates.validation import examine_archive  # noqa: PLC0415 - NumPy, on first use

    versions = (adapter_files.local(core.blobs, digest, landing.folder) for digest in known)
    examined, found = examine_archive(folder, ticket.spec, ticket.federation.contract, versions)
    return Content(examined, tokenizer=found.tokenizer)


async def _versions(core: ServerContext, federation: FederationRow) -> list[str]:
    """Return the adapter digests of the newest versions, newest first."""
    rows = await core.read(
        lambda connection: federation_versions.page(connection, federation.seq, limit=_COMPARED_VERSIONS)
    )
    return [digest for row in rows for path, digest, _ in orjson.loads(row.files) if path == ADAPTER_FILE]


async def take_update(core: ServerContext, caller: FederationCaller, reference: str, body: UpdateCreate) -> Accepted:
    """Validate and accept an update whose files were uploaded before; a repetition returns the first outcome.

    Raises:
        ForbiddenError: If the caller has no access, or the worker is not a participant.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        ArtifactError: If one of its files was not uploaded to this federation.
        AdapterRefused: If the adapter is not valid for the federation.
    """

    def look(connection: Connection) -> tuple[ExpectedUpload, int] | Accepted:
        found = expected(connection, caller, reference, body)
        return (
            found if isinstance(found, Accepted) else (found, _sent_bytes(connection, caller, found.federation, body))
        )

    found = await core.read(look)
    if isinstance(found, Accepted):
        # The repetition has pinned the files again, although the update has its own pins.
        await _let_go(core, found.update.federation_seq, body)
        return found
    ticket, size_bytes = found
    metadata = metadata_of(body)
    async with with_scratch(core, ticket, metadata, size_bytes) as scratch:
        fetched = partial(adapter_files.local, core.blobs, body.sha256, scratch.folder)
        weights = await run_transfer(ticket.federation, fetched)
        content = await in_thread(partial(content_of, core, ticket, body, weights, scratch))
        return await take(core, ticket, metadata, content, scratch)


async def _let_go(core: ServerContext, seq: int, body: UpdateCreate) -> None:
    """Unpin files that were sent again after their update was accepted."""

    def holders(connection: Connection) -> list[str]:
        row = federations.by_seq(connection, seq)
        found = [] if row is None else senders(row.id, body.worker)
        return [each for each in found if artifacts.pinned_by(connection, body.sha256, each)]

    held_by = await core.read(holders)
    if held_by:
        await core.write(lambda connection: artifacts.unpin_files(connection, [body.sha256], held_by))


def expected(
    connection: Connection, caller: FederationCaller, reference: str, body: UpdateCreate
) -> ExpectedUpload | Accepted:
    """Check whether an update can count; one that was accepted before returns its outcome.

    Raises:
        ForbiddenError: If the caller has no access, or the worker is not a participant.
        GoneError: If the federation has ended, or a later attempt of the worker takes part.
        InputError: If the number of examples exceeds the federation's limit.
        AdapterRefused: If its base version does not exist.
    """
    row = find_to_take_part(connection, caller, reference, body.worker)
    before = acceptance.known(connection, row, body.worker, body.step, body.sha256)
    if before is not None and not acceptance.says_other_rows(before, body.num_examples, body.attempt):
        return before
    acceptance.refuse_upload(connection, row, body.worker, body.attempt)
    ticket = ExpectedUpload(row, spec_of(row), body.worker, body.step)
    refuse_count(body.num_examples, ticket.spec)
    refuse_unknown_base(row, body.base_version)
    return ticket


def metadata_of(body: UpdateCreate) -> UpdateMetadata:
    """Return the metadata of an update."""
    return UpdateMetadata(body.num_examples, body.base_version, None, body.losses, body.attempt, body.rows_before)


def _sent_bytes(connection: Connection, caller: FederationCaller, federation: FederationRow, body: UpdateCreate) -> int:
    """Return the size of an update's weights; raises unless all of its files were uploaded."""
    _refuse_unsent(connection, caller, federation, {ADAPTER_FILE: body.sha256})
    refuse_unsent_tokenizer(connection, caller, federation, body)
    return artifacts.sizes(connection, federation.project, [body.sha256]).get(body.sha256, 0)


def refuse_unsent_tokenizer(
    connection: Connection, caller: FederationCaller, federation: FederationRow, body: UpdateCreate
) -> None:
    """Raise if a tokenizer file was not uploaded to the federation, or is not a tokenizer file."""
    for name in body.tokenizer:
        if not is_tokenizer(name):
            raise InputError(f"{name[:200]!r} is not a tokenizer file.", hint="Omit it.")
    _refuse_unsent(connection, caller, federation, body.tokenizer)


def _sender(caller: FederationCaller, federation: FederationRow) -> str:
    """Return the pin holder of a caller's files; a worker with a token of its own has its own holder."""
    return senders(federation.id, only_worker(caller))[0]


def _refuse_unsent(
    connection: Connection, caller: FederationCaller, federation: FederationRow, files_: Mapping[str, str]
) -> None:
    """Raise if a file was not uploaded to the federation by this sender."""
    for name, digest in files_.items():
        # Knowing a digest is not access: otherwise a caller could use other users' stored files by naming their
        # digests.
        if not artifacts.pinned_by(connection, digest, _sender(caller, federation)):
            raise ArtifactError(
                f"The file {name} ({digest[:12]}…) was not uploaded to this federation.", hint="Upload it first."
            )


def content_of(
    core: ServerContext, ticket: ExpectedUpload, body: UpdateCreate, weights: Path, scratch: Scratch
) -> Content:
    """Validate an update's weights, and return its content; blocks.

    Args:
        scratch: Receives the dequantized weights of an int8 upload.
    """
    from tunefleet.federation.quantize import unpack  # noqa: PLC0415 - NumPy, on first use
    from tunefleet.orchestrator.federation.updates.validation import examine  # noqa: PLC0415

    config = orjson.dumps(body.config)
    contract = ticket.federation.contract
    if body.upload_dtype != "int8":
        examined = examine(weights, config, ticket.spec, contract, sha256=body.sha256)
        return Content(examined, stored=body.tokenizer, digest=body.sha256)
    # Checks for free disk space before dequantizing, which takes four times the size of the upload.
    core.blobs.expect(_FLOAT_BYTES * weights.stat().st_size)
    wide = scratch.make() / ADAPTER_FILE
    unpack(weights, wide)
    return Content(examine(wide, config, ticket.spec, contract), stored=body.tokenizer, quantized=body.sha256)


async def expect_file(
    core: ServerContext, caller: FederationCaller, reference: str, digest: str, size_bytes: int
) -> tuple[FederationRow, bool]:
    """Check whether the caller may upload a file for an update.

    Returns:
        The federation, and whether the same sender has already uploaded the file and it is still pinned.

    Raises:
        GoneError: If the federation has ended.
        TooLargeError: If the file exceeds the limit.
        QuotaError: If the federation's project would exceed its storage quota.
    """

    def operation(connection: Connection) -> tuple[FederationRow, bool]:
        row = find_to_take_part(connection, caller, reference)
        if FederationStatus(row.status).final:
            raise GoneError(f"Federation {row.id} is {row.status} and accepts no more updates.")
        most = spec_of(row).max_update_bytes
        if size_bytes > most:
            raise too_large(most)
        if row.task_seq is None:
            refuse_upload(connection, core=core, project=row.project, digest=digest, size_bytes=size_bytes)
        return row, artifacts.pinned_by(connection, digest, _sender(caller, row))

    return await core.read(operation)


async def stored_file(
    core: ServerContext, caller: FederationCaller, federation: FederationRow, digest: str, size_bytes: int
) -> None:
    """Record a file that the store has just verified, and pin it for the update that will refer to it.

    Raises:
        OffsetConflict: If the file was deleted meanwhile, and must be uploaded again.
    """

    def operation(connection: Connection) -> None:
        # Files are deleted in the writer thread only, which runs this: none can vanish between this check and the
        # commit.
        if not core.blobs.has(digest):
            raise OffsetConflict(f"The file {digest[:12]}… has to be uploaded again.", cursor=0)
        now = core.clock.wall()
        quotas.refuse_update(connection, federation, {digest: size_bytes})
        capacity.add(connection, core.blobs, digest, size_bytes)
        artifacts.add_blob(connection, project=federation.project, digest=digest, size_bytes=size_bytes, at=now)
        artifacts.pin(connection, [digest], holder=_sender(caller, federation), until=now + PIN_S)

    await core.write(operation)
