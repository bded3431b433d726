"""`taskType: serve`: an OpenAI-compatible endpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from tunefleet.spec.base import Block, NotBool, PositiveFloat, PositiveInt, wrong
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def _endpoint_name(value: str) -> str:
    # It is a part of URLs, and the `model` of requests.
    if not _NAME.fullmatch(value):
        raise wrong(
            "must have 1 to 63 lowercase letters, digits, hyphens and dots, with a letter or digit at each end",
            "write for example support-bot",
        )
    return value


EndpointName = Annotated[str, AfterValidator(_endpoint_name)]


class ServeSpec(Block):
    """`spec.serve`: the endpoint."""

    name: EndpointName | None = None
    """Name in the URL `/serve/NAME/v1`, and the `model` of requests; unique in the project. Default: the id of the
    task. A newer task with the same name replaces the older one when its model is loaded."""
    wait_s: Annotated[float, Field(ge=0, le=600), NotBool] = 10.0
    """How long a request waits for a loaded model, in seconds, before the response is 503."""
    requests_per_minute: PositiveInt | None = None
    """Rate limit for each API key; a request above it gets 429."""


class ServeTaskSpec(AnsweringTaskSpec):
    """`taskType: serve`: an OpenAI-compatible endpoint, which runs until it is cancelled."""

    task_type: Literal["serve"] = Field(default="serve", alias="taskType")
    """`serve`"""
    serve: ServeSpec = Field(default_factory=ServeSpec)
    """The endpoint."""
    access_mode: Literal["forward", "proxy"] = Field(default="forward", alias="accessMode")
    """How clients reach the endpoint: through the server, in both modes."""
    ttl_s: PositiveFloat | None = Field(default=None, alias="ttlSeconds")
    """Seconds without a request after which the run completes and frees its devices. The next request starts it again.
    Default: it runs until it is cancelled."""
    readiness_timeout_s: PositiveFloat | None = Field(default=None, alias="readinessTimeoutSeconds")
    """Alias of `serve.wait_s`."""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """Default sampling parameters of requests, and the system prompt; only with Transformers."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        inference: InferenceSpec | None = blocks.get("inference")
        serve: ServeSpec | None = blocks.get("serve")
        if blocks.get("readiness_timeout_s") is not None and serve is not None and "wait_s" in serve.model_fields_set:
            found.append(("readinessTimeoutSeconds", "is an alias of serve.wait_s", "leave one of them out"))
        for key in ("n", "logprobs"):
            if inference is not None and key in inference.model_fields_set:
                found.append((f"inference.{key}", "is set per request", "leave it out"))
        return found


def endpoint_name(spec: Mapping[str, Any], task_id: str) -> str:
    """Return the name of the endpoint of a task.

    Args:
        spec: The stored `spec` mapping of the task.
        task_id: The default.
    """
    serve = spec.get("serve")
    name = serve.get("name") if isinstance(serve, Mapping) else None
    return str(name or task_id)
