"""Datasets in an S3 store: downloaded with the campaign's keys, and stored on our server by digest.

Workers get no keys or links. An unchanged object is not downloaded again.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

from tunefleet.campaign import object_store, progress
from tunefleet.campaign.contract import StepContext
from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec

KIND = "dataset"


async def fetched(context: StepContext) -> dict[int, str]:
    """Return the digest of each dataset in an S3 store, by its index in the campaign.

    Raises:
        CycleFailed: If no store is configured.
        NotFoundError: If an object does not exist.
        MachineError: If the store refuses access.
        UnreachableError: If it does not respond.
    """
    wanted = {number: each for number, each in enumerate(context.spec.datasets) if each.s3 is not None}
    return {number: await _digest(context, each) for number, each in wanted.items()}


async def _digest(context: StepContext, dataset: CampaignDatasetSpec) -> str:
    bucket, _, key = (dataset.s3 or "").removeprefix("s3://").partition("/")
    purpose = f"{dataset.s3} is in an object store"
    store = await asyncio.to_thread(object_store.open_store, context.settings, purpose, bucket)
    try:
        version = await asyncio.to_thread(store.version, key)
        name = f"campaign-source-{hashlib.sha256(f'{dataset.s3} {version}'.encode()).hexdigest()[:24]}"
        known = await context.client.artifacts.list(name=name, limit=1)
        if known.items:
            return known.items[0].digest
        folder = context.settings.home.expanduser() / "sources" / context.state.campaign_id
        await asyncio.to_thread(_empty, folder)
        try:
            path = folder / key.rpartition("/")[2]
            async with progress.counted(context, "downloading", of=dataset.s3) as got:
                await asyncio.to_thread(store.get, key, path, got.expect, got.add)
            artifact = await context.client.artifacts.push(path, name=name, kind=KIND)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await context.log(f"{dataset.s3} downloaded: {artifact.size_bytes:,} bytes")
        return artifact.digest
    finally:
        await asyncio.to_thread(store.close)


def _empty(folder: Path) -> None:
    # A killed process may have left partial files.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
