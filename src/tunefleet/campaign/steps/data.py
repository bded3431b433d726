"""`data`: verify the base model, prepare training and eval rows once, and cut the chunk of this cycle.

Datasets in an S3 store are downloaded with the campaign's keys and stored on our server by digest: workers get no keys
or links. An unchanged object is not downloaded again.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path
from typing import Any

from tunefleet.campaign import (
    base_model_check,
    data_documents,
    object_store,
    paid_training_checks,
    progress,
    publish_targets,
)
from tunefleet.campaign.contract import Later, Outcome, Repeatable, StepContext
from tunefleet.campaign.data_documents import chunk_at
from tunefleet.campaign.task_client import CampaignTaskClient, result_of
from tunefleet.lifecycle.cycle import StepName
from tunefleet.schemas.api import ArtifactView, TaskDetail
from tunefleet.spec.documents.campaign_data import CampaignDatasetSpec

KIND = "dataset"


class DataStep(Repeatable):
    """Verifies the model and prepares the rows unless an earlier cycle did, and cuts the chunk."""

    name = StepName.DATA

    async def plan(self, context: StepContext) -> Outcome:
        """Plan the chunk and the publish target, after checking that the target is usable."""
        # Checked before anything is paid for: a model that cannot be published would be lost money.
        paid_training_checks.check(context)
        to = publish_targets.place_of(context)
        if to is not None:
            await publish_targets.check(context, to)
        return {"position": context.state.position, "seed": context.spec.random_seed, "to": to}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Verify the model, prepare the rows, and cut the chunk."""
        spec, runner = context.spec, CampaignTaskClient(context)
        for text in paid_training_checks.doubts(context.state.name, spec, context.settings, context.provider.name):
            await context.log(text)
        model = await base_model_check.verified(context)
        body, inputs = data_documents.rows_document(spec, await _fetch_s3_sources(context))
        leaves = {data_documents.ROWS: (data_documents.TRAIN, data_documents.TEST)}
        tasks = await runner.shared("rows", body, inputs, leaves=leaves)
        made = next(task for task in tasks if task.name == data_documents.ROWS)
        train = _file(made, await runner.left(made.id, data_documents.TRAIN))
        test = _file(made, await runner.left(made.id, data_documents.TEST))
        chunk = chunk_at(
            int(intent["position"]), rows=train["rows"], most=spec.samples_per_training, seed=int(intent["seed"])
        )
        name = f"{context.state.name}-{context.state.number}-chunk"
        (cut,) = await runner.run("chunk", data_documents.chunk_document(name, train["artifact_id"], chunk))
        await context.log(
            f"chunk {chunk.index + 1} of {chunk.count} in epoch {chunk.epoch}: "
            f"rows {chunk.start:,} to {chunk.stop:,} of {train['rows']:,}; {test['rows']:,} eval rows"
        )
        return {
            "rows_task": made.id,
            "train": train,
            "test": test,
            "chunk": _file(cut, await runner.left(cut.id, data_documents.TRAIN)),
            "epoch": chunk.epoch,
            "index": chunk.index,
            "chunks": chunk.count,
            "start": chunk.start,
            "stop": chunk.stop,
            "to": intent.get("to"),
            "model": model,
        }


def _file(task: TaskDetail, artifact: ArtifactView) -> dict[str, Any]:
    files = {each["name"]: each for each in result_of(task)["files"]}
    return {
        "task_id": task.id,
        "artifact_id": artifact.id,
        "digest": artifact.digest,
        "rows": int(files[artifact.name]["rows"]),
    }


class UploadStep(Repeatable):
    """Uploads the chunk to an object store under the order's key, and removes the files of earlier orders."""

    name = StepName.UPLOAD

    async def plan(self, context: StepContext) -> Outcome:
        """Plan whether anything is uploaded."""
        return {"needed": context.provider.fetches_from_store}

    async def act(self, context: StepContext, intent: Outcome) -> Outcome | Later:
        """Upload the chunk."""
        if not intent["needed"]:
            return {}
        key = context.state.order_key
        async with object_store.opened(context) as shelf:
            removed = await shelf.sweep(keep=key)
            if removed:
                await context.log(f"removed {removed} file(s) of earlier orders from the store")
            return {"objects": dict((await shelf.ensure(key)).objects)}


async def _fetch_s3_sources(context: StepContext) -> dict[int, str]:
    """Return the digest of each dataset in an S3 store, by its index in the campaign."""
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
