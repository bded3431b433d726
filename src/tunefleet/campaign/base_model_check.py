"""Before anything is paid for a task of ours verifies the base model, once, and gives it another tokenizer if asked.

Who fetches models from the hub gets the model with its tokenizer from there:

    hf://<HF_USERNAME>/<org>__<model>-with-tokenizer
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from tunefleet.campaign import publish_targets
from tunefleet.campaign.contract import Base, CycleFailed, Misconfigured, Outcome, StepContext
from tunefleet.campaign.hub_models import HUB
from tunefleet.campaign.scratch_folder import room
from tunefleet.campaign.task_client import Desk, digest_of, document, inputs_of, model_of, result_of
from tunefleet.integrations.publishing import hub
from tunefleet.settings import CampaignSettings
from tunefleet.spec.documents.campaign_document import CampaignSpec

# What the task leaves, if the model gets another tokenizer.
MODEL: Final = "final_model"
# Another one verifies every model anew: raised when more is looked at.
_VERSION: Final = 1
_REPO: Final = re.compile(r"[\w.-]+/[\w.-]+")
_ENDING: Final = "-with-tokenizer"
_MARK: Final = "tunefleet.json"


async def verified(context: StepContext) -> Outcome:
    """Return what is known of the base model; a task finds it out, unless one has done so for any campaign before.

    Returns:
        `task_id` and what the task says of the model; with another tokenizer `artifact_id` and `digest` of the model
        that has it, and `url` if it is on the hub, too.

    Raises:
        Misconfigured: If the model cannot be trained.
        StepFailed: If the task failed for another reason.
    """
    spec, desk = context.spec, Desk(context)
    body, inputs = _task(spec)
    name = f"campaign-model-{digest_of(_VERSION, body, inputs)[:24]}"
    leaves = {} if spec.tokenizer_id is None else {name: (MODEL,)}
    whole = document(name, {**body, **_place(spec, context.settings)})
    try:
        (task,) = await desk.shared("model", whole, {name: inputs} if inputs else {}, leaves=leaves)
    except CycleFailed as error:
        text = f"{spec.model_repo} cannot be trained, and nothing was ordered. {error.message}"
        raise Misconfigured(text, hint="Name a model that can be trained, or correct this one.") from error
    said = result_of(task)
    known = {key: said[key] for key in ("commit", "parameters", "dtypes", "vocabulary") if key in said}
    found: dict[str, Any] = {"task_id": task.id, "repo": spec.model_repo, "tokenizer": spec.tokenizer_id, **known}
    if spec.tokenizer_id is not None:
        made = await desk.left(task.id, MODEL)
        found |= {"artifact_id": made.id, "digest": made.digest}
        if await _needs_hub(context):
            found["url"] = await _published(context, found)
    return found


def base_in(spec: CampaignSpec, data: Outcome) -> Base:
    """Return the campaign's own base: as it is, or with its other tokenizer."""
    model: Mapping[str, Any] = data.get("model") or {}
    digest = model.get("digest") or spec.inputs.get("model_repo")
    return Base(repo=spec.model_repo, digest=digest, url=model.get("url"))


def _task(spec: CampaignSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what is asked of a model, and what travelled for it; not on which machine."""
    base = Base(repo=spec.model_repo, digest=spec.inputs.get("model_repo"))
    body: dict[str, Any] = {"taskType": "verify", "model": {"source": model_of(spec, base)["model"]["source"]}}
    options = {"forward": spec.model.verify == "forward", "chat_template": spec.chats}
    body["verify"] = options
    inputs = dict(inputs_of("model", base).get("model", {}))
    if spec.tokenizer_id is not None:
        body["model"]["tokenizer"] = spec.tokenizer_id
        travelled = spec.inputs.get("tokenizer_id")
        inputs |= {} if travelled is None else {"model.tokenizer": travelled}
    return body, inputs


def _place(spec: CampaignSpec, settings: CampaignSettings) -> dict[str, Any]:
    """Return where the task runs: as the campaign says, but for its GPUs where none is to be used."""
    said: dict[str, Any] = spec.resources.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not settings.use_cpu:
        return {"resources": said} if said else {}
    hardware = {key: value for key, value in said.get("hardware", {}).items() if key != "gpu"}
    said = {key: value for key, value in {**said, "hardware": hardware}.items() if value != {}}
    return {"enforce_cpu": True, **({"resources": said} if said else {})}


async def _needs_hub(context: StepContext) -> bool:
    """Whether somebody fetches this cycle's base from the hub: not once a model of the campaign is promoted."""
    elsewhere = context.provider.fetches_from_store or publish_targets.on_runpod(context.spec, context.settings)
    return elsewhere and await context.book.promoted(context.state) is None


async def _published(context: StepContext, made: Mapping[str, Any]) -> str:
    """Put the model with its tokenizer on the hub, unless it is there: a mark in the same commit says which it is."""
    spec, username = context.spec, context.settings.hf_username
    if username is None or _REPO.fullmatch(spec.model_repo) is None:
        raise Misconfigured(
            f"{context.provider.name} fetches models from the hub, and {spec.model_repo} with the tokenizer of "
            f"{spec.tokenizer_id} is not there.",
            hint="Name a model of the hub, and set HF_USERNAME and HF_TOKEN: it is put there.",
        )
    to = f"{HUB}{username}/{spec.model_repo.replace('/', '__')}{_ENDING}"
    mark, keys = orjson.dumps({"digest": made["digest"]}), publish_targets.keys(context.settings)
    if await asyncio.to_thread(hub.read, to.removeprefix(HUB), _MARK, keys) == mark:
        return to
    async with room(context, "tokenizer") as folder:
        await publish_targets.fetch(context, made["artifact_id"], folder)
        (folder / _MARK).write_bytes(mark)
        where = await publish_targets.put(context, to, folder)
    await context.log(f"{spec.model_repo} with the tokenizer of {spec.tokenizer_id} is at {where}")
    return to
