"""`push`: publishes a model, an adapter or a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tunefleet.executors.base import JobExecutor, Output, missing
from tunefleet.integrations.publishing.hub import has_token
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.spec.tasks.push_task import HUB, HUB_CLIENT

_CLIENT: Final = "huggingface_hub"
_BUCKETS: Final = "boto3"
_OFFLINE: Final = "HF_HUB_OFFLINE"
_YES: Final = frozenset({"1", "on", "true", "yes"})


class PushExecutor(JobExecutor):
    """Publishes files of another task; leaves only its result."""

    kind = "push"
    program = "tunefleet.workloads.publishing:main"

    def unavailable_reason(self) -> str | None:
        """Return which packages are missing: those of the Hub or those of buckets are enough."""
        reasons = [missing(each, extra=extra) for each, extra in ((_CLIENT, "train"), (_BUCKETS, "s3"))]
        return None if None in reasons else reasons[0]

    def features(self, environment: Mapping[str, str]) -> dict[str, str | None]:
        """Return whether this machine can reach the Hub, and has a token for it."""
        client = missing(_CLIENT, extra="train", what="The packages for the Hub")
        if client is None and environment.get(_OFFLINE, "").lower() in _YES:
            client = f"{_OFFLINE} is set: unset it on the worker to allow connections to the Hub."
        token = None if has_token(environment) else "HF_TOKEN is not set: start the worker with a token that may write."
        return {HUB_CLIENT: client, HUB: client or token}

    def outputs(self, folder: JobFolder) -> list[Output]:
        """Return nothing: the files are those of another task."""
        del folder
        return []
