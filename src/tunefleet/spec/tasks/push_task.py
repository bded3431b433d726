"""`taskType: push`: publishes a model, an adapter or a GGUF file to the Hugging Face Hub or a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from tunefleet.spec.base import Block, Label, Revision, Text, wrong
from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec, pointer_of
from tunefleet.spec.options.environment import Secret
from tunefleet.spec.options.output import S3
from tunefleet.spec.options.publish_target import bucket_place, hub_repository, target_fault
from tunefleet.spec.tasks.base_task import BaseTaskSpec, Devices
from tunefleet.spec.tasks.cross_field_checks import Faults

# Worker features: a client of the Hub, and that client with a token of the worker.
HUB_CLIENT: Final = "huggingface_hub"
HUB: Final = "hub"
_HUB_ONLY: Final = ("revision", "message", "private", "hf_token")
_KEYS: Final = ("access_key", "secret_key")


def _target(value: str) -> str:
    fault = target_fault(value)
    if fault is not None:
        raise wrong(fault.message, fault.hint)
    if hub_repository(value) is None and bucket_place(value) is None:
        raise wrong(
            "is a folder, which would be on whichever worker runs the task",
            "write hf://ORG/NAME or s3://BUCKET/PREFIX; `tunefleet export` downloads into a folder",
        )
    return value


class PushOptions(Block):
    """`spec.push`: where and how the files are published."""

    to: Annotated[Text, AfterValidator(_target)]
    """`hf://ORG/NAME` or `s3://BUCKET/PREFIX`. The Hub is that of the worker's `HF_ENDPOINT`, the S3 endpoint that of
    its `TUNEFLEET_S3_ENDPOINT`."""
    private: bool = False
    """With the Hub: create the repository as private; the task fails if it exists and is public."""
    revision: Revision | None = None
    """With the Hub: branch; created if missing. Default: the main branch."""
    message: Label | None = None
    """With the Hub: commit message."""
    force: bool = False
    """Overwrite existing files. Without it the task fails if the target is not empty."""
    hf_token: Secret | None = None
    """With the Hub: token with write access, as `${secret:NAME}`; default: the worker's `HF_TOKEN`, or its saved
    login."""
    access_key: Secret | None = None
    """With a bucket: access key with write permission, as `${secret:NAME}`. The worker's own keys are never used."""
    secret_key: Secret | None = None
    """With a bucket: secret of the access key, as `${secret:NAME}`."""


class PushedCheckpointSpec(Block):
    """`spec.checkpoint` of a push task."""

    load: CheckpointLoadSpec
    """Model, adapter or GGUF file to publish."""


class PushTaskSpec(BaseTaskSpec):
    """`taskType: push`: publishes a model, an adapter or a GGUF file."""

    task_type: Literal["push"] = Field(default="push", alias="taskType")
    """`push`"""
    checkpoint: PushedCheckpointSpec
    """What to publish, such as the model of a task."""
    push: PushOptions
    """Where and how it is published."""

    @property
    def devices(self) -> Devices:
        """Which GPUs the task uses: none, even if the resources of all stages request one."""
        return Devices(0)

    @property
    def start(self) -> CheckpointLoadSpec:
        """What to publish."""
        return self.checkpoint.load

    @property
    def start_pointer(self) -> str:
        """The key that names it."""
        return pointer_of(self.checkpoint.load)

    @property
    def features(self) -> tuple[str, ...]:
        """What the target requires on the worker."""
        if hub_repository(self.push.to) is None:
            return (S3,)
        return (HUB,) if self.push.hf_token is None else (HUB_CLIENT,)

    @classmethod
    def faults(cls, blocks: dict[str, Any]) -> Faults:
        """Find errors across blocks; see `BaseTaskSpec.faults`."""
        found = super().faults(blocks)
        push: PushOptions | None = blocks.get("push")
        if push is not None:
            found += _target_faults(push)
        return found


def _target_faults(push: PushOptions) -> Faults:
    hub = hub_repository(push.to) is not None
    given: Mapping[str, Any] = {name: getattr(push, name) for name in (*_HUB_ONLY, *_KEYS)}
    other, target = (_KEYS, "a bucket") if hub else (_HUB_ONLY, "the Hub")
    found: Faults = [
        (f"push.{name}", f"is only for {target}, not for {push.to}", "remove it") for name in other if given[name]
    ]
    if not hub:
        found += [
            (f"push.{name}", "is required with a bucket", "set ${secret:NAME}") for name in _KEYS if not given[name]
        ]
    return found
