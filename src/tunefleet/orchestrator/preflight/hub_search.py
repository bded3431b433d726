"""Search for models on the Hub, for the web page: the browser itself sends nothing to third parties."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tunefleet.client.external import hub_config
from tunefleet.errors import ConflictError
from tunefleet.orchestrator.access.permissions import Actor, may_submit
from tunefleet.orchestrator.context import ServerContext
from tunefleet.schemas.datasets import HubModel, HubModels

_LIMIT: Final = 12
_AT_ONCE: Final = 2


@dataclass(slots=True)
class _Searches:
    """The searches of this server."""

    at_once: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))


async def search(core: ServerContext, actor: Actor, text: str) -> HubModels:
    """Return text generation models on the Hub that match a text, most downloaded first.

    Raises:
        ConflictError: If the server is offline (`HF_HUB_OFFLINE`).
        UnreachableError: If the Hub does not answer within a few seconds.
    """
    may_submit(actor)
    settings = core.settings
    if settings.hub_offline:
        raise ConflictError(
            "This server does not reach the Hugging Face Hub: it runs with HF_HUB_OFFLINE.",
            hint="Enter the complete id of a model that the workers have in their cache, such as Qwen/Qwen3-0.6B.",
        )
    # A slow Hub must not take all threads of the server.
    async with core.state(_Searches).at_once:
        found = await asyncio.to_thread(hub_config.search, settings.hub_endpoint, text, _LIMIT, settings.url_allow)
    return HubModels(models=tuple(model(each) for each in found if isinstance(each, Mapping) and "id" in each))


def model(found: Mapping[str, Any]) -> HubModel:
    """Return a model as the Hub describes it."""
    tensors, downloads = found.get("safetensors"), found.get("downloads")
    total = tensors.get("total") if isinstance(tensors, Mapping) else None
    return HubModel(
        id=str(found["id"]),
        weights=total if isinstance(total, int) and total > 0 else None,
        downloads=downloads if isinstance(downloads, int) else 0,
        # "auto" or "manual" where a person, or a program, has to agree.
        gated=bool(found.get("gated")),
    )
