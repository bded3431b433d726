"""Take an upload that is on the disk: check it in a thread, store its files, let it count, remember a refusal."""

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
from tunefleet.orchestrator.context import Core
from tunefleet.orchestrator.federation import adapter_files
from tunefleet.orchestrator.federation.guide import data_chunks
from tunefleet.orchestrator.federation.updates import acceptance
from tunefleet.orchestrator.federation.updates.acceptance import Accepted, Arrived, CheckAgain, Refused
from tunefleet.orchestrator.federation.updates.scratch import Scratch, keep
from tunefleet.orchestrator.storage import capacity
from tunefleet.schemas.federated import Losses
from tunefleet.spec.options.federation_options import FederationSpec

if TYPE_CHECKING:
    from tunefleet.orchestrator.federation.updates.validation import Examined

T = TypeVar("T")
NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_TRIES: Final = 3
_ON_ITS_WAY_S: Final = 3600.0
"""How long the files of an update are kept for it before it is stored."""
# How long a tokenizer is kept for updates that name it; each of them renews it, and versions keep their own.
_TOKENIZER_S: Final = 30 * 24 * 3600.0
# Checking is work of the processor: a crowd of workers shall neither fill the memory nor hold up other threads.
_threads = ThreadPoolExecutor(2, thread_name_prefix="tunefleet-adapters")
_AT_ONCE: Final = 2
_carriers = ThreadPoolExecutor(2 * _AT_ONCE, thread_name_prefix="tunefleet-carriers")
"""Unpacking an archive, and moving files to and from a store far away, takes minutes: nobody's check waits for it."""
# One federation has no more than half of the carriers; forgotten with the last who uses or awaits them.
_turns: Final[WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], asyncio.Semaphore]] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Ticket:
    """An upload that may come."""

    federation: FederationRow
    spec: FederationSpec
    worker: str
    step: int


@dataclass(frozen=True, slots=True)
class Said:
    """What an upload says of itself."""

    num_examples: int
    base_version: int | None = None
    sha256: str | None = None
    losses: Losses = field(default_factory=Losses)
    attempt: int | None = None
    rows_before: int | None = None


@dataclass(frozen=True, slots=True)
class Content:
    """What was found in an upload.

    Args:
        tokenizer: Path → file, of those that are not in the store yet.
        quantized: Of the file that came in 8 bits, of which the weights were made.
    """

    examined: Examined
    tokenizer: Mapping[str, Path] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    quantized: str | None = None


async def carried(federation: FederationRow, work: Callable[[], T]) -> T:
    """Run what takes long without much of the processor, to its end, beside the checks."""
    key = asyncio.get_running_loop(), federation.id
    turn = _turns.get(key) or _turns.setdefault(key, asyncio.Semaphore(_AT_ONCE))
    async with turn:
        return await in_thread(work, _carriers)


async def in_thread(work: Callable[[], T], threads: ThreadPoolExecutor = _threads) -> T:
    """Run heavy work in a thread of its own, to its end: what it works on is removed after."""
    task = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(threads, work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise


@asynccontextmanager
async def remembering(core: Core, ticket: Ticket, said: Said, scratch: Scratch) -> AsyncIterator[None]:
    """Keep what is refused inside, with its reason, for the version that it did not become a part of."""
    try:
        yield
    except (AdapterRefused, ArtifactError, TooLargeError) as error:
        refused = Refused(
            ticket.worker, ticket.step, said.num_examples, scratch.size_bytes, error.message, said.base_version
        )
        await core.write(partial(_reject, row=ticket.federation, refused=refused, now=core.clock.wall()))
        raise


@asynccontextmanager
async def with_scratch(core: Core, ticket: Ticket, said: Said, size_bytes: int = 0) -> AsyncIterator[Scratch]:
    """Give an update a place while it is looked at, which is gone afterwards; what is refused inside is remembered."""
    scratch = Scratch(core.blobs)
    scratch.size_bytes = size_bytes
    try:
        async with remembering(core, ticket, said, scratch):
            yield scratch
    finally:
        if scratch.folder.exists():
            await asyncio.to_thread(scratch.close)


def _reject(connection: Connection, *, row: FederationRow, refused: Refused, now: float) -> None:
    acceptance.reject(connection, row, refused, now)


async def take(
    core: Core,
    ticket: Ticket,
    said: Said,
    content: Content,
    scratch: Scratch,
    *,
    kept: Mapping[str, int] = NOTHING,
) -> Accepted:
    """Store an update that was checked, and let it count.

    Args:
        kept: Digest → length of files that the store was just given, which are recorded with the update.

    Raises:
        AdapterRefused: If the first update came meanwhile, and this one is not like it; or if it names a version to
            have begun from that there is not.
        NoRoomError: If its files would go beyond what the server may keep.
    """
    refuse_unknown_base(ticket.federation, said.base_version)
    stored = content.digest is not None and not content.tokenizer
    sizes = {} if stored else await in_thread(partial(_sizes, content))
    digests = {path: digest for path, (digest, _) in sizes.items()}
    arrived = _arrived(ticket, said, content, digests)
    if not digests:
        return await _accept(core, ticket, arrived, _New(kept), scratch)
    new = _New({digest: size for digest, size in sizes.values()}, f"{ticket.federation.id}-{scratch.folder.name}")
    await core.write(partial(_hold, core=core, row=ticket.federation, new=new))
    try:
        await carried(ticket.federation, partial(_keep, core, content, digests))
        return await _accept(core, ticket, arrived, new, scratch)
    except BaseException:
        await core.write(lambda connection: artifacts.unpin(connection, [new.holder]))
        raise


@dataclass(frozen=True, slots=True)
class _New:
    """Files that go into the store with an update: digest → length, and who holds them meanwhile."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    holder: str = ""


def refuse_unknown_base(federation: FederationRow, base_version: int | None) -> None:
    """Refuse an update that says it began from a version that there is not."""
    if base_version is not None and base_version > federation.version:
        raise AdapterRefused(
            f"The update says that it began from version {base_version}; the newest of {federation.id} is "
            f"{federation.version}.",
            hint="Send the version that the worker loaded, 0 for none, or leave it out.",
        )


def _hold(connection: Connection, *, core: Core, row: FederationRow, new: _New) -> None:
    capacity.refuse(connection, core.blobs, new.sizes)
    # Here, before anything is kept, and again as they are recorded.
    quotas.refuse_update(connection, row, new.sizes)
    # Before the files go into the store: the collection of garbage leaves alone what somebody holds.
    until = core.clock.wall() + _ON_ITS_WAY_S
    artifacts.pin(connection, [*new.sizes], holder=new.holder, until=until)


# Stands for the adapter's weights among the paths of the tokenizer's files.
_WEIGHTS: Final = ""


def _sizes(content: Content) -> dict[str, tuple[str, int]]:
    """Return digest and length of each file that is not in the store under its digest yet."""
    new = dict(content.tokenizer)
    if content.digest is None:
        new[_WEIGHTS] = content.examined.weights
    return {path: hash_file(file) for path, file in new.items()}


def _keep(core: Core, content: Content, digests: Mapping[str, str]) -> None:
    for path, digest in digests.items():
        keep(core.blobs, content.examined.weights if path == _WEIGHTS else content.tokenizer[path], digest)


def _arrived(ticket: Ticket, said: Said, content: Content, digests: Mapping[str, str]) -> Arrived:
    examined = content.examined
    return Arrived(
        worker=ticket.worker,
        step=ticket.step,
        num_examples=said.num_examples,
        model_digest=content.digest or digests[_WEIGHTS],
        size_bytes=examined.size_bytes,
        values_digest=examined.values_digest,
        config=examined.config,
        checked_against=ticket.federation.contract,
        contract=examined.contract,
        base_version=said.base_version,
        upload_dtype=examined.dtype if content.quantized is None else "int8",
        tokenizer={**content.stored, **{path: digest for path, digest in digests.items() if path != _WEIGHTS}},
        norm=examined.norm,
        losses=said.losses,
        upload_digest=content.quantized,
        doubt=examined.doubt,
        attempt=said.attempt,
        rows_before=said.rows_before,
    )


async def _accept(core: Core, ticket: Ticket, arrived: Arrived, new: _New, scratch: Scratch) -> Accepted:
    row = ticket.federation
    for _ in range(_TRIES):
        try:
            return await core.write(partial(_count, core=core, row=row, arrived=arrived, new=new))
        except CheckAgain:
            row = await core.read(partial(_again, seq=row.seq))
            weights = await carried(row, partial(adapter_files.local, core.blobs, arrived.model_digest, scratch.folder))
            await in_thread(partial(_recheck, ticket.spec, row.contract, arrived, weights))
            arrived = replace(arrived, checked_against=row.contract)
    raise CheckAgain(f"What updates of {row.id} must be changes all the time.", hint="Send it again.")


def _count(connection: Connection, *, core: Core, row: FederationRow, arrived: Arrived, new: _New) -> Accepted:
    now = core.clock.wall()
    quotas.refuse_update(connection, row, new.sizes)
    for digest, size_bytes in new.sizes.items():
        # Files are deleted in this thread only, so that the file cannot go between this look and the commit.
        if not core.blobs.has(digest):
            raise ConflictError(f"The file {digest[:12]}… was collected as an old one.", hint="Upload it again.")
        capacity.add(connection, core.blobs, digest, size_bytes)
        artifacts.add_blob(connection, project=row.project, digest=digest, size_bytes=size_bytes, at=now)
    accepted = acceptance.accept(connection, row, arrived, now)
    # Later updates name the tokenizer by its digests alone.
    artifacts.pin(connection, [*arrived.tokenizer.values()], holder=row.id, until=now + _TOKENIZER_S)
    if new.holder:
        artifacts.unpin(connection, [new.holder])
    data_chunks.heard_of(connection, row.seq, arrived.worker, now)
    return accepted


def _again(connection: Connection, *, seq: int) -> FederationRow:
    row = federations.by_seq(connection, seq)
    if row is None:
        raise NotFoundError("The federation was removed.")
    return row


def _recheck(spec: FederationSpec, contract: str | None, arrived: Arrived, weights: Path) -> None:
    from tunefleet.orchestrator.federation.updates.validation import examine  # noqa: PLC0415 - NumPy, on first use

    examine(weights, arrived.config.encode(), spec, contract)
