"""Chunks in an object store, for providers that fetch them from there: upload, signed links, removal.

    <PREFIX>/<campaign>/<cycle>/<16 digits of the chunk's digest>_dataset.json

The object key contains the order's key: a repeated upload writes the same object, and a link to an object identifies
its order. Blocking calls run in threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from tunefleet.campaign import progress
from tunefleet.campaign.contract import CycleFailed, StepContext
from tunefleet.campaign.data_documents import CHAT, INSTRUCTION
from tunefleet.errors import TunefleetError, UnreachableError
from tunefleet.lifecycle.cycle import StepName
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

if TYPE_CHECKING:
    # Needs boto3, which is optional and slow to import.
    from tunefleet.artifacts.objects import ObjectStore

PREFIX: Final = "tunefleet-campaigns"
# Role of the only file of most orders.
DATASET: Final = "dataset"
# The longest validity of a signed link in S3; links are signed just before the order is placed.
LINK_S: Final = 7 * 86_400
_TYPE: Final = "application/json"
# Role → name in the object key, and share of the rows; `_REST` gets the remainder.
_SHARES: Final = {"training_data": ("train_data", 0.9), "test_data": ("test_data", 0.05)}
_REST: Final = ("synthetic_data", "synth_data")


@dataclass(frozen=True, slots=True)
class Uploaded:
    """The files of an order."""

    objects: Mapping[str, str]

    @property
    def main(self) -> str:
        """The object that the provider refers to in the order's status."""
        return self.objects.get(DATASET) or self.objects["training_data"]


def named(spec: CampaignSpec, order_key: str, digest: str) -> Uploaded:
    """Return the names of an order's files."""
    stem = f"{PREFIX}/{order_key}/{digest[:16]}"
    if spec.task_type != "InstructTextWithFixedDatasets":
        return Uploaded({DATASET: f"{stem}_dataset.json"})
    roles = {role: name for role, (name, _) in _SHARES.items()} | dict((_REST,))
    return Uploaded({role: f"{stem}_{name}.json" for role, name in roles.items()})


class CampaignObjects:
    """A campaign's objects in the store."""

    def __init__(self, store: ObjectStore, context: StepContext) -> None:
        self._store, self._context = store, context

    async def ensure(self, order_key: str) -> Uploaded:
        """Upload the cycle's chunk for an order, unless it is there."""
        context, chunk = self._context, self._context.outcome(StepName.DATA)["chunk"]
        wanted = named(context.spec, order_key, chunk["digest"])
        if await asyncio.to_thread(self._is_uploaded, wanted):
            return wanted
        folder = _folder(context)
        # A killed process may have left partial files.
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        try:
            async with progress.counted(context, "downloading", of=chunk["artifact_id"]) as got:
                rows = await context.client.artifacts.fetch(
                    chunk["artifact_id"], folder / "rows", on_progress=got.follow
                )
            async with progress.counted(context, "uploading", of=wanted.main) as sent:
                sizes = await asyncio.to_thread(self._put, rows, folder, wanted, int(chunk["rows"]), sent)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await context.log(f"{chunk['rows']:,} rows uploaded: {sum(sizes):,} bytes in {len(sizes)} file(s)")
        return wanted

    async def links(self, uploaded: Uploaded) -> dict[str, str]:
        """Return a new signed link to each file, by role."""
        objects = uploaded.objects.items()
        return await asyncio.to_thread(lambda: {role: self._store.link(key, LINK_S) for role, key in objects})

    async def sweep(self, keep: str) -> int:
        """Remove the objects of this campaign's other orders."""
        root = f"{PREFIX}/{self._context.state.campaign_id}/"
        kept = f"{PREFIX}/{keep}/"

        def remove() -> int:
            old = [key for key in self._store.names(root) if not key.startswith(kept)]
            # Multipart uploads of killed processes are aborted too: only one process at a time holds the campaign.
            return self._store.remove(old) + self._store.abort(root)

        return await asyncio.to_thread(remove)

    async def clear(self) -> int:
        """Remove the objects of this cycle's orders, and return their number."""
        state = self._context.state
        roots = [f"{PREFIX}/{state.campaign_id}/{state.number}{end}" for end in "/."]

        def remove() -> int:
            return sum(self._store.remove(self._store.names(root)) + self._store.abort(root) for root in roots)

        return await asyncio.to_thread(remove)

    def _is_uploaded(self, wanted: Uploaded) -> bool:
        return all(self._store.size(key) for key in wanted.objects.values())

    def _put(self, rows: Path, folder: Path, wanted: Uploaded, count: int, sent: progress.Counter) -> list[int]:
        sizes = []
        with _lines(rows) as lines:
            for role, share in shares(tuple(wanted.objects), count):
                path = folder / f"{role}.json"
                sizes.append(write_array(islice(lines, share), path, columns(self._context.spec)))
                sent.expect(sizes[-1])
                self._store.put(path, wanted.objects[role], _TYPE, sent.add)
                path.unlink()
        return sizes


@contextlib.asynccontextmanager
async def opened(context: StepContext) -> AsyncIterator[CampaignObjects]:
    """Open the store of the settings.

    Raises:
        CycleFailed: If none is configured.
        MachineError: If boto3 is missing.
    """
    purpose = f"The provider {context.provider.name} fetches its rows from an object store"
    store = await asyncio.to_thread(open_store, context.settings, purpose)
    try:
        yield CampaignObjects(store, context)
    finally:
        await asyncio.to_thread(store.close)


async def clear(context: StepContext, *, last: bool = False) -> None:
    """Remove the files of a cycle, here and in the store, once they are no longer needed; a failure is only logged.

    The campaign's next upload removes the rest. Files of other running cycles are not touched.

    Raises:
        UnreachableError: If the store does not respond and this is the `last` chance.
    """
    if not context.provider.fetches_from_store:
        return
    await asyncio.to_thread(shutil.rmtree, _folder(context), ignore_errors=True)
    try:
        async with opened(context) as shelf:
            await shelf.clear()
    except TunefleetError as error:
        if last and isinstance(error, UnreachableError):
            raise
        await context.log(f"cannot remove files from the store yet: {error}")


def _folder(context: StepContext) -> Path:
    state = context.state
    return context.settings.home.expanduser() / "uploads" / f"{state.campaign_id}-{state.number}"


def endpoint_of(text: str) -> str:
    """Return the URL of a store; a bare host gets https."""
    return text if "://" in text else f"https://{text}"


def columns(spec: CampaignSpec) -> tuple[str, ...]:
    """Return the columns that are uploaded for a provider."""
    return (CHAT,) if spec.chats else INSTRUCTION


def shares(roles: Sequence[str], rows: int) -> list[tuple[str, int]]:
    """Return the number of rows of each file, in order.

    Raises:
        CycleFailed: If a file would be empty.
    """
    if tuple(roles) == (DATASET,):
        return [(DATASET, rows)]
    most = max(1, round(rows * _SHARES["test_data"][1]))
    parts = {"training_data": rows - 2 * most, "test_data": most, _REST[0]: most}
    if parts["training_data"] < 1:
        raise CycleFailed(
            f"A chunk of {rows} rows is too small for {', '.join(roles)}.", hint="Raise samples_per_training."
        )
    return [(role, parts[role]) for role in roles]


def write_array(lines: Iterator[bytes], path: Path, kept: Sequence[str]) -> int:
    """Write JSON Lines as one JSON array, row by row, and return its size in bytes."""
    with path.open("wb") as file:
        file.write(b"[")
        for number, line in enumerate(lines):
            row: dict[str, Any] = orjson.loads(line)
            file.write(b",\n" if number else b"\n")
            file.write(orjson.dumps({column: row[column] for column in kept}))
        file.write(b"\n]\n")
        return file.tell()


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[Iterator[bytes]]:
    with path.open("rb") as file:
        yield (line for line in file if line.strip())


def open_store(settings: CampaignSettings, purpose: str, bucket: str | None = None) -> ObjectStore:
    """Return the store of the settings; blocks."""
    bucket = bucket or settings.s3_bucket
    given = {
        "TUNEFLEET_CAMPAIGN_S3_ENDPOINT": settings.s3_endpoint,
        "TUNEFLEET_CAMPAIGN_S3_ACCESS_KEY": settings.s3_access_key,
        "TUNEFLEET_CAMPAIGN_S3_SECRET_KEY": settings.s3_secret_key,
        "TUNEFLEET_CAMPAIGN_S3_BUCKET": bucket,
    }
    missing = [name for name, value in given.items() if not value]
    access, secret, endpoint = settings.s3_access_key, settings.s3_secret_key, settings.s3_endpoint
    if access is None or secret is None or not endpoint or not bucket:
        raise CycleFailed(f"{purpose}, but none is configured.", hint=f"Set {', '.join(missing)}.")
    from tunefleet.artifacts.objects import Bucket, ObjectStore  # noqa: PLC0415 -- needs boto3

    keys = {"access_key": access.get_secret_value(), "secret_key": secret.get_secret_value()}
    return ObjectStore(Bucket(name=bucket, endpoint=endpoint_of(endpoint), **keys))
