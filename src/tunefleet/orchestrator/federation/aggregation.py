"""Aggregate the updates of a closed round into one adapter: files in, files out, in a thread.

Only the round's own row changes. Aggregation is deterministic: two servers, or one that was restarted, make the same
files, and the compare-and-swap on the round lets only one of them publish.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from tunefleet.artifacts import BlobStore
from tunefleet.db import Connection
from tunefleet.db.federations import federation_updates, federation_versions, federations, rounds
from tunefleet.db.federations.federation_updates import COUNTED, UpdateRow
from tunefleet.db.federations.federation_versions import VersionRow
from tunefleet.db.federations.federations import FederationRow
from tunefleet.db.federations.rounds import RoundRow
from tunefleet.db.repositories import artifacts
from tunefleet.errors import AdapterRefused, NotFoundError, StoreError, TunefleetError
from tunefleet.lifecycle.round import RoundReason
from tunefleet.orchestrator.context import ServerContext
from tunefleet.orchestrator.federation import adapter_files as files
from tunefleet.orchestrator.federation.rounds import result_holder
from tunefleet.orchestrator.federation.status import FOREVER, publish_event, spec_of
from tunefleet.orchestrator.storage import capacity
from tunefleet.schemas.api import FileEntry
from tunefleet.schemas.federated import ADAPTER_FILE, CONFIG_FILE

if TYPE_CHECKING:
    from tunefleet.federation import Update

_STATE: Final = "state.safetensors"


class UpdateAggregationError(Exception):
    """One update cannot be averaged with the others; names it."""

    def __init__(self, update: UpdateRow, error: TunefleetError) -> None:
        super().__init__(error.message)
        self.update = update
        self.error = error


@dataclass(frozen=True, slots=True)
class AggregationInput:
    """A closed round with its inputs.

    Args:
        previous: The newest version; None before the first.
    """

    federation: FederationRow
    round: RoundRow
    updates: tuple[UpdateRow, ...]
    previous: VersionRow | None


@dataclass(frozen=True, slots=True)
class AggregationResult:
    """The result of a round, as stored in its row until it is published."""

    files: tuple[FileEntry, ...]
    state: FileEntry | None
    report: dict[str, Any]

    def dump(self) -> str:
        """Serialize to JSON."""
        state = None if self.state is None else self.state.model_dump()
        return orjson.dumps(
            {"files": [each.model_dump() for each in self.files], "state": state, "report": self.report}
        ).decode()

    @classmethod
    def load(cls, text: str) -> AggregationResult:
        """Deserialize the output of `dump`."""
        body = orjson.loads(text)
        entries = tuple(FileEntry.model_validate(each) for each in body["files"])
        state = None if body["state"] is None else FileEntry.model_validate(body["state"])
        return cls(entries, state, body["report"])


def load_input(connection: Connection, current: RoundRow) -> AggregationInput | None:
    """Load the inputs of a closed round; None if its federation was removed."""
    row = federations.by_seq(connection, current.federation_seq)
    if row is None:
        return None
    counted = federation_updates.of_round(connection, row.seq, current.number, [COUNTED])
    newest = federation_versions.get(connection, row.seq, row.version) if row.version else None
    return AggregationInput(row, current, tuple(sorted(counted, key=lambda each: each.worker)), newest)


async def run(core: ServerContext, work: AggregationInput, folder: Path, holder: str) -> RoundRow | None:
    """Average the updates of a round and store the result.

    Raises:
        Blamed: If one of the updates cannot be averaged with the others.
        AdapterRefused: If aggregation fails for a reason that no single update explains.
        TunefleetError: If the store does not respond or is full.
    """
    result = await make(core, work, folder)
    return await core.write(
        partial(store, blobs=core.blobs, work=work, result=result, holder=holder, now=core.clock.wall())
    )


async def make(core: ServerContext, work: AggregationInput, folder: Path) -> AggregationResult:
    """Average the updates of a round; raises as `run` does."""
    return await asyncio.to_thread(_make, core.blobs, work, folder)


def _make(blobs: BlobStore, work: AggregationInput, folder: Path) -> AggregationResult:
    # Imported on use: most servers never aggregate, and NumPy is slow to load.
    from tunefleet.federation.aggregation.strategy import aggregate, with_error  # noqa: PLC0415

    into = folder / "made"
    # An attempt that failed on a full disk may have left partial files.
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    updates = [_update(blobs, each, folder) for each in work.updates]
    previous, state = _before(blobs, work.previous, folder)
    new_state = folder / _STATE
    strategy = spec_of(work.federation).strategy
    try:
        report = aggregate(updates, strategy, into=into, previous=previous, state=state, new_state=new_state)
        report = with_error(report, strategy, updates, into)
    except AdapterRefused as error:
        # Updates were checked when they were accepted; they are checked again only to find the one that broke the
        # average.
        blamed = _to_blame(blobs, work, folder)
        if blamed is not None:
            raise blamed from error
        raise
    found = sorted(path for path in into.rglob("*") if path.is_file())
    made = [files.keep(blobs, path, path.relative_to(into).as_posix()) for path in found]
    after = files.keep(blobs, new_state, _STATE) if new_state.exists() else None
    carried = [entry for entry in _tokenizer(blobs, work) if entry.path not in {each.path for each in made}]
    return AggregationResult(tuple(sorted([*made, *carried], key=lambda each: each.path)), after, report.to_json())


def _update(blobs: BlobStore, row: UpdateRow, folder: Path) -> Update:
    from tunefleet.federation import Update, read_config  # noqa: PLC0415

    assert row.model_digest is not None, "a counted update has files"
    assert row.config is not None, "a counted update has a config"
    try:
        path = files.local(blobs, row.model_digest, folder)
    except NotFoundError as error:
        raise UpdateAggregationError(row, error) from error
    return Update(row.worker, path, read_config(row.config.encode()), row.num_examples)


def _before(blobs: BlobStore, version: VersionRow | None, folder: Path) -> tuple[Update | None, Path | None]:
    """Return the previous global adapter and its outer optimizer state."""
    from tunefleet.federation import Update, read_config  # noqa: PLC0415

    if version is None:
        return None, None
    digests = {path: digest for path, digest, _ in orjson.loads(version.files)}
    config = read_config(blobs.read(digests[CONFIG_FILE]))
    update = Update(f"version {version.version}", files.local(blobs, digests[ADAPTER_FILE], folder), config)
    state = None if version.state_digest is None else files.local(blobs, version.state_digest, folder)
    return update, state


def _tokenizer(blobs: BlobStore, work: AggregationInput) -> list[FileEntry]:
    """Return the tokenizer files: those of the newest update that has any, else those of the previous version."""
    for row in sorted(work.updates, key=lambda each: each.seq, reverse=True):
        carried: Mapping[str, str] = orjson.loads(row.tokenizer)
        if carried:
            return [FileEntry(path=p, digest=d, size_bytes=blobs.size(d)) for p, d in carried.items()]
    if work.previous is None:
        return []
    listed = orjson.loads(work.previous.files)
    return [FileEntry(path=p, digest=d, size_bytes=s) for p, d, s in listed if not _is_adapters(p)]


def _is_adapters(path: str) -> bool:
    """Whether each round writes this file; other files are carried over from the previous version."""
    return path.endswith((".safetensors", CONFIG_FILE))


def _to_blame(blobs: BlobStore, work: AggregationInput, folder: Path) -> UpdateAggregationError | None:
    """Return the first update that violates the federation's contract, if any."""
    from tunefleet.federation import AdapterFile  # noqa: PLC0415
    from tunefleet.federation.contract import Contract, check  # noqa: PLC0415

    if work.federation.contract is None:
        return None
    contract = Contract.from_json(work.federation.contract)
    mixed = spec_of(work.federation).mixed_ranks
    for row in work.updates:
        try:
            update = _update(blobs, row, folder)
            with AdapterFile(update.path) as file:
                check(contract, update.config, file, mixed_ranks=mixed)
        except AdapterRefused as error:
            return UpdateAggregationError(row, error)
    return None


def store(
    connection: Connection,
    *,
    blobs: BlobStore,
    work: AggregationInput,
    result: AggregationResult,
    holder: str,
    now: float,
) -> RoundRow | None:
    """Record the result of a round, and return the round; None if another holder has taken it over.

    Raises:
        StoreError: If one of the files was deleted in the meantime.
    """
    row = federations.by_seq(connection, work.federation.seq, lock=True)
    if row is None:
        return None
    # Stored in the round's row: publishing can be retried without averaging again.
    changes = {"result": result.dump()}
    moved = rounds.move(connection, work.round, RoundReason.AGGREGATED, now, holder=holder, values=changes)
    if moved is None:
        return None
    entries = [*result.files, *([] if result.state is None else [result.state])]
    for entry in entries:
        # Files are deleted in the writer thread only, which runs this: none can vanish between this check and the
        # commit.
        if not blobs.has(entry.digest):
            raise StoreError(
                f"The file {entry.digest[:12]}… of round {moved.number} was garbage collected; the round is retried."
            )
        # Counted but never refused: a finished round must not fail on a quota.
        capacity.add(connection, blobs, entry.digest, entry.size_bytes)
        artifacts.add_blob(connection, project=row.project, digest=entry.digest, size_bytes=entry.size_bytes, at=now)
    digests = [entry.digest for entry in entries]
    artifacts.pin(connection, digests, holder=result_holder(row.id, moved.number), until=FOREVER)
    publish_event(connection, row, "federation.round_aggregated", now, round=moved.number)
    return moved
