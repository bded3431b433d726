"""Verify the base model once, before anything is paid for, and replace its tokenizer if the campaign asks for it.

Providers that fetch models from the Hub get the model with its tokenizer from there:

    hf://<TUNEFLEET_HF_USERNAME>/<org>__<model>-with-tokenizer
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from tunefleet.campaign import publish_targets
from tunefleet.campaign.contract import Base, CycleFailed, Misconfigured, Outcome, StepContext
from tunefleet.campaign.publish_targets import HUB
from tunefleet.campaign.scratch_folder import step_folder
from tunefleet.campaign.task_client import CampaignTaskClient, digest_of, document, inputs_of, model_of, result_of
from tunefleet.integrations.publishing import hub
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

# The task's artifact if the tokenizer is replaced.
MODEL: Final = "final_model"
# Part of the cache key: raise it when the verification changes, so that all models are verified again.
_VERSION: Final = 1
_REPO: Final = re.compile(r"[\w.-]+/[\w.-]+")
_ENDING: Final = "-with-tokenizer"
_MARK: Final = "tunefleet.json"


async def verified(context: StepContext) -> Outcome:
    """Verify the base model with a task, or return the result of an earlier verification for any campaign.

    Returns:
        `task_id` and the task's findings; with another tokenizer also `artifact_id` and `digest` of the model that has
        it, and `url` if it is on the Hub.

    Raises:
        Misconfigured: If the model cannot be trained.
        StepFailed: If the task failed for another reason.
    """
    spec, runner = context.spec, CampaignTaskClient(context)
    body, inputs = _task(spec)
    name = f"campaign-model-{digest_of(_VERSION, body, inputs)[:24]}"
    leaves = {} if spec.tokenizer_id is None else {name: (MODEL,)}
    workflow = document(name, {**body, **_placement(spec, context.settings)})
    try:
        (task,) = await runner.shared("model", workflow, {name: inputs} if inputs else {}, leaves=leaves)
    except CycleFailed as error:
        text = f"{spec.model_repo} cannot be trained; nothing was ordered. {error.message}"
        raise Misconfigured(text, hint="Set `model_repo` to a model that can be trained, or fix this one.") from error
    result = result_of(task)
    known = {key: result[key] for key in ("commit", "parameters", "dtypes", "vocabulary") if key in result}
    found: dict[str, Any] = {"task_id": task.id, "repo": spec.model_repo, "tokenizer": spec.tokenizer_id, **known}
    if spec.tokenizer_id is not None:
        made = await runner.left(task.id, MODEL)
        found |= {"artifact_id": made.id, "digest": made.digest}
        if await _needs_hub(context):
            found["url"] = await _published(context, found)
    return found


def base_in(spec: CampaignSpec, data: Outcome) -> Base:
    """Return the campaign's own base, with its replaced tokenizer if there is one."""
    model: Mapping[str, Any] = data.get("model") or {}
    digest = model.get("digest") or spec.inputs.get("model_repo")
    return Base(repo=spec.model_repo, digest=digest, url=model.get("url"))


def _task(spec: CampaignSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the verification task's spec and uploaded inputs, without placement, which is no part of the cache key."""
    base = Base(repo=spec.model_repo, digest=spec.inputs.get("model_repo"))
    body: dict[str, Any] = {"taskType": "verify", "model": {"source": model_of(spec, base)["model"]["source"]}}
    options = {"forward": spec.model.verify == "forward", "chat_template": spec.chats}
    body["verify"] = options
    inputs = dict(inputs_of("model", base).get("model", {}))
    if spec.tokenizer_id is not None:
        body["model"]["tokenizer"] = spec.tokenizer_id
        uploaded = spec.inputs.get("tokenizer_id")
        inputs |= {} if uploaded is None else {"model.tokenizer": uploaded}
    return body, inputs


def _placement(spec: CampaignSpec, settings: CampaignSettings) -> dict[str, Any]:
    """Return the campaign's resources for the task, without GPUs if the settings ask for the CPU."""
    resources: dict[str, Any] = spec.resources.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not settings.use_cpu:
        return {"resources": resources} if resources else {}
    hardware = {key: value for key, value in resources.get("hardware", {}).items() if key != "gpu"}
    resources = {key: value for key, value in {**resources, "hardware": hardware}.items() if value != {}}
    return {"enforce_cpu": True, **({"resources": resources} if resources else {})}


async def _needs_hub(context: StepContext) -> bool:
    """Whether this cycle's base is fetched from the Hub; no longer once a model of the campaign is promoted."""
    elsewhere = context.provider.fetches_from_store or publish_targets.on_runpod(context.spec, context.settings)
    return elsewhere and await context.repository.promoted(context.state) is None


async def _published(context: StepContext, made: Mapping[str, Any]) -> str:
    """Publish the model with its tokenizer to the Hub, unless a marker file of the same commit is there."""
    spec, username = context.spec, context.settings.hf_username
    if username is None or _REPO.fullmatch(spec.model_repo) is None:
        raise Misconfigured(
            f"{context.provider.name} fetches models from the Hub, but {spec.model_repo} with the tokenizer of "
            f"{spec.tokenizer_id} is not there.",
            hint="Use a model from the Hub, and set TUNEFLEET_HF_USERNAME and HF_TOKEN to publish it there.",
        )
    to = f"{HUB}{username}/{spec.model_repo.replace('/', '__')}{_ENDING}"
    mark, keys = orjson.dumps({"digest": made["digest"]}), publish_targets.keys(context.settings)
    if await asyncio.to_thread(hub.read, to.removeprefix(HUB), _MARK, keys) == mark:
        return to
    async with step_folder(context, "tokenizer") as folder:
        await publish_targets.fetch(context, made["artifact_id"], folder)
        (folder / _MARK).write_bytes(mark)
        where = await publish_targets.put(context, to, folder)
    await context.log(f"{spec.model_repo} with the tokenizer of {spec.tokenizer_id} is published at {where}")
    return to
