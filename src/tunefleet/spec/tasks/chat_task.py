"""`taskType: chat`: a model that is held ready on a worker, and answers as long as somebody talks with it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tunefleet.spec.base import NotBool
from tunefleet.spec.options.generation import InferenceSpec
from tunefleet.spec.tasks.cross_field_checks import Faults
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec


class ChatTaskSpec(AnsweringTaskSpec):
    """`taskType: chat`: a session; its turns come by `POST /api/v1/tasks/{id}/chat`."""

    task_type: Literal["chat"] = Field(default="chat", alias="taskType")
    """`chat`"""
    inference: InferenceSpec = Field(default_factory=InferenceSpec)
    """How answers are drawn where a turn does not say it, and the system prompt."""
    idle_s: Annotated[float, Field(ge=1, le=86_400), NotBool] = 600.0
    """Seconds without a turn after which the session ends by itself; the task is then completed."""

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find faults between blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        inference: InferenceSpec | None = blocks.get("inference")
        if inference is not None and inference.n > 1:
            found.append(("inference.n", "a chat answers once a turn", "leave it out"))
        if inference is not None and inference.logprobs is not None:
            found.append(("inference.logprobs", "cannot be given for a chat", "leave it out"))
        return found
