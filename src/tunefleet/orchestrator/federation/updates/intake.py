"""Process an upload that is on disk: validate it in a thread, store its files, accept it, record a rejection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar
from weakref import WeakValueDictionary

from tunefleet.artifacts import hash_file
from tunefleet.db import Connection
from tunefleet.db.federations import federations
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import AdapterRefused, ArtifactError, ConflictError, NotFoundError, TooLargeError
from tunefleet.orchestrator.access import quotas
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import adapter_files, data_chunks
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.federation.updates.acceptance import Accepted, CheckAgain, Refused, ValidatedUpdate
from tunefleet.orchestrator.federation.updates.scratch import Scratch, keep
from tunefleet.orchestrator.storage import capacity
from tunefleet.schemas.federated import Losses
from tunefleet.spec.options.federation_options import FederationSpec

if TYPE_CHECKING:
    from tunefleet.orchestrator.federation.updates.validation import Examined

T = TypeVar("T")
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_TRIES: Final = 3
# How long the files of an update are pinned before it is accepted.
_INTAKE_PIN_S: Final = 3600.0
# How long a tokenizer is pinned for updates that refer to it; each of them renews the pin, and versions have their own.
_TOKENIZER_S: Final = 30 * 24 * 3600.0
# Validation is CPU-bound: a separate pool keeps many workers from filling the memory or blocking other threads.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tunefleet-adapters")
_MAX_TRANSFERS: Final = 2
# Unpacking and transfers to and from a remote bucket take minutes: a second pool keeps validation from waiting for
# them.
_transfers = ThreadPoolExecutor(2 * _MAX_TRANSFERS, thread_name_prefix="tunefleet-transfers")
# One federation uses at most half of the transfer threads. Weak values: a semaphore is dropped with its last user.
_turns: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore]] = WeakValueDictionary()
# Key of the adapter's weights among the paths of the tokenizer files.
_WEIGHTS: Final = ""


@dataclass(frozen=True, slots=True)
class ExpectedUpload:
    """An upload that is expected and may count."""

    federation: FederationRow
    spec: FederationSpec
    worker: str
    step: int


@dataclass(frozen=True, slots=True)
class UpdateMetadata:
    """The metadata that a worker sends with an upload."""

    num_examples: int
    base_version: int | None = None
    sha256: str | None = None
    losses: Losses = field(default_factory=Losses)
    attempt: int | None = None
    rows_before: int | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """The validated content of an upload.

    Args:
        tokenizer: Path → file, for tokenizer files that are not stored yet.
        stored: Path → digest, for tokenizer files that are already stored.
        digest: Digest of the weights if they are stored already.
        quantized: Digest of the int8 file that the weights were dequantized from.
    """

    examined: Examined
    tokenizer: Mapping[str, Path] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    quantized: str | None = None


async def run_transfer(federation: FederationRow, work: Callable[[], T]) -> T:
    """Run slow I/O to its end in the transfer threads."""
    key = asyncio.get_running_loop(), federation.id
    turn = _turns.get(key) or _turns.setdefault(key, asyncio.Semaphore(_MAX_TRANSFERS))
    async with turn:
        return await in_thread(work, _transfers)


async def in_thread(work: Callable[[], T], threads: ThreadPoolExecutor = _threads) -> T:
    """Run CPU-bound work to its end in a thread, also if the caller is cancelled."""
    task = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(threads, work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        # A thread cannot be cancelled: its files must not be removed while it still uses them.
        await asyncio.wait((task,))
        raise


@asynccontextmanager
async def recording_rejection(
    core: ServerContext, ticket: ExpectedUpload, metadata: UpdateMetadata, scratch: Scratch
) -> AsyncIterator[None]:
    """Record an update that is rejected in this block, with the reason, for the version's report."""
    try:
        yield
    except (AdapterRefused, ArtifactError, TooLargeError) as error:
        refused = Refused(
            ticket.worker, ticket.step, metadata.num_examples, scratch.size_bytes, error.message, metadata.base_version
        )
        await core.write(partial(_reject, row=ticket.federation, refused=refused, now=core.clock.wall()))
        raise


@asynccontextmanager
async def with_scratch(
    core: ServerContext, ticket: ExpectedUpload, metadata: UpdateMetadata, size_bytes: int = 0
) -> AsyncIterator[Scratch]:
    """Provide a scratch folder for an update, removed afterwards; a rejection in this block is recorded."""
    scratch = Scratch(core.blobs)
    scratch.size_bytes = size_bytes
    try:
        async with recording_rejection(core, ticket, metadata, scratch):
            yield scratch
    finally:
        if scratch.folder.exists():
            await asyncio.to_thread(scratch.close)


def _reject(connection: Connection, *, row: FederationRow, refused: Refused, now: float) -> None:
    acceptance.reject(connection, row, refused, now)


async def take(
    core: ServerContext,
    ticket: ExpectedUpload,
    metadata: UpdateMetadata,
    content: Content,
    scratch: Scratch,
    *,
    kept: Mapping[str, int] = NOTHING,
) -> Accepted:
    """Store a validated update, and accept it.

    Args:
        kept: Digest → size in bytes of files that were just stored, and are recorded with the update.

    Raises:
        AdapterRefused: If it violates the contract of a first update that arrived meanwhile, or names an unknown base
            version.
        NoRoomError: If its files would exceed the server's storage limit.
    """
    refuse_unknown_base(ticket.federation, metadata.base_version)
    stored = content.digest is not None and not content.tokenizer
    sizes = {} if stored else await in_thread(partial(_sizes, content))
    digests = {path: digest for path, (digest, _) in sizes.items()}
    arrived = _arrived(ticket, metadata, content, digests)
    if not digests:
        return await _accept(core, ticket, arrived, _New(kept), scratch)
    new = _New({digest: size for digest, size in sizes.values()}, f"{ticket.federation.id}-{scratch.folder.name}")
    await core.write(partial(_hold, core=core, row=ticket.federation, new=new))
    try:
        await run_transfer(ticket.federation, partial(_keep, core, content, digests))
        return await _accept(core, ticket, arrived, new, scratch)
    except BaseException:
        # Also on cancellation: otherwise the files would stay pinned for an hour.
        await core.write(lambda connection: artifacts.unpin(connection, [new.holder]))
        raise


@dataclass(frozen=True, slots=True)
class _New:
    """Files that are stored with an update: digest → size in bytes, and their temporary pin holder."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    holder: str = ""


def refuse_unknown_base(federation: FederationRow, base_version: int | None) -> None:
    """Raise if an update names a base version that does not exist."""
    if base_version is not None and base_version > federation.version:
        raise AdapterRefused(
            f"The update has base version {base_version}, but the newest version of {federation.id} is "
            f"{federation.version}.",
            hint="Set `base_version` to the version that the worker loaded (0: none), or omit it.",
        )


def _hold(connection: Connection, *, core: ServerContext, row: FederationRow, new: _New) -> None:
    capacity.refuse(connection, core.blobs, new.sizes)
    # Checked before any file is stored, and again when the files are recorded.
    quotas.refuse_update(connection, row, new.sizes)
    # Pinned before they are stored: the garbage collector could delete unpinned files before the update is accepted.
    until = core.clock.wall() + _INTAKE_PIN_S
    artifacts.pin(connection, [*new.sizes], holder=new.holder, until=until)


def _sizes(content: Content) -> dict[str, tuple[str, int]]:
    """Return digest and size of each file that is not stored yet."""
    new = dict(content.tokenizer)
    if content.digest is None:
        new[_WEIGHTS] = content.examined.weights
    return {path: hash_file(file) for path, file in new.items()}


def _keep(core: ServerContext, content: Content, digests: Mapping[str, str]) -> None:
    for path, digest in digests.items():
        keep(core.blobs, content.examined.weights if path == _WEIGHTS else content.tokenizer[path], digest)


def _arrived(
    ticket: ExpectedUpload, metadata: UpdateMetadata, content: Content, digests: Mapping[str, str]
) -> ValidatedUpdate:
    examined = content.examined
    return ValidatedUpdate(
        worker=ticket.worker,
        step=ticket.step,
        num_examples=metadata.num_examples,
        model_digest=content.digest or digests[_WEIGHTS],
        size_bytes=examined.size_bytes,
        values_digest=examined.values_digest,
        config=examined.config,
        checked_against=ticket.federation.contract,
        contract=examined.contract,
        base_version=metadata.base_version,
        upload_dtype=examined.dtype if content.quantized is None else "int8",
        tokenizer={**content.stored, **{path: digest for path, digest in digests.items() if path != _WEIGHTS}},
        norm=examined.norm,
        losses=metadata.losses,
        upload_digest=content.quantized,
        doubt=examined.doubt,
        attempt=metadata.attempt,
        rows_before=metadata.rows_before,
    )


async def _accept(
    core: ServerContext, ticket: ExpectedUpload, arrived: ValidatedUpdate, new: _New, scratch: Scratch
) -> Accepted:
    row = ticket.federation
    for _ in range(_TRIES):
        try:
            return await core.write(partial(_count, core=core, row=row, arrived=arrived, new=new))
        except CheckAgain:
            row = await core.read(partial(_again, seq=row.seq))
            weights = await run_transfer(
                row, partial(adapter_files.local, core.blobs, arrived.model_digest, scratch.folder)
            )
            await in_thread(partial(_recheck, ticket.spec, row.contract, arrived, weights))
            arrived = replace(arrived, checked_against=row.contract)
    raise CheckAgain(f"The contract of {row.id} changed during each validation.", hint="Send the update again.")


def _count(
    connection: Connection, *, core: ServerContext, row: FederationRow, arrived: ValidatedUpdate, new: _New
) -> Accepted:
    now = core.clock.wall()
    quotas.refuse_update(connection, row, new.sizes)
    for digest, size_bytes in new.sizes.items():
        # Files are deleted in the writer thread only, which runs this: none can vanish between this check and the
        # commit.
        if not core.blobs.has(digest):
            raise ConflictError(f"The file {digest[:12]}… was garbage collected.", hint="Upload it again.")
        capacity.add(connection, core.blobs, digest, size_bytes)
        artifacts.add_blob(connection, project=row.project, digest=digest, size_bytes=size_bytes, at=now)
    accepted = acceptance.accept(connection, row, arrived, now)
    # Later updates refer to the tokenizer by digest only.
    artifacts.pin(connection, [*arrived.tokenizer.values()], holder=row.id, until=now + _TOKENIZER_S)
    if new.holder:
        artifacts.unpin(connection, [new.holder])
    data_chunks.renew_lease(connection, row.seq, arrived.worker, now)
    return accepted


def _again(connection: Connection, *, seq: int) -> FederationRow:
    row = federations.by_seq(connection, seq)
    if row is None:
        raise NotFoundError("The federation was removed.")
    return row


def _recheck(spec: FederationSpec, contract: str | None, arrived: ValidatedUpdate, weights: Path) -> None:
    from tunefleet.orchestrator.federation.updates.validation import examine  # noqa: PLC0415 - NumPy, on first use

    examine(weights, arrived.config.encode(), spec, contract)
