"""Requests to RunPod serverless, and its responses and those of the merge job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tunefleet.campaign.contract import StepFailed
from tunefleet.errors import printable
from tunefleet.observability.scrub import scrub

QUEUED: Final = "IN_QUEUE"
COMPLETED: Final = "COMPLETED"
TIMED_OUT: Final = "TIMED_OUT"
CANCELLED: Final = "CANCELLED"
_MEMORY: Final = re.compile(r"out of memory|outofmemory|oom[- ]?kill|cannot allocate memory", re.IGNORECASE)
_AUTH: Final = re.compile(
    r"\b40[13]\b|unauthori[sz]ed|forbidden|gated repo|is gated|invalid (user )?token|may not (read|be read|be written)",
    re.IGNORECASE,
)
_TIME: Final = re.compile(r"execution ?timeout|timed? ?out", re.IGNORECASE)
_MAX_REASON: Final = 300


def request(  # noqa: PLR0913 -- the fields of a job
    lora: str,
    base: str,
    *,
    token: str | None,
    username: str,
    seconds: float,
    private: bool = True,
    code: bool = False,
    revision: str | None = None,
    anew: bool = False,
) -> dict[str, Any]:
    """Return the body of a job.

    Args:
        token: Hub token with read access to both and write access to the result; None if the endpoint has one.
        revision: Commit of the adapter's repository; None for its newest.
    """
    # "anonimize" (the API's spelling) would give the repository a random name, which could not be found after a crash.
    job: dict[str, Any] = {"lora_model_id": lora, "base_model_id": base, "anonimize": False, "hf_username": username}
    if token is not None:
        job["hf_token"] = token
    if not private:
        job["private"] = False
    if revision is not None:
        job["lora_revision"] = revision
    if anew:
        job["merge_anew"] = True
    if code:
        job["trust_remote_code"] = True
    return {"input": job, "policy": {"executionTimeout": int(seconds * 1000)}}


def verified(output: Any) -> bool | None:
    """Return whether a forward pass has verified a merge; None if the job does not report it."""
    value = output.get("verified") if isinstance(output, Mapping) else None
    return value if isinstance(value, bool) else None


def took_s(payload: Mapping[str, Any]) -> float | None:
    """Return the duration of a finished job in seconds; None if RunPod does not report it."""
    took_ms = payload.get("executionTime")
    if isinstance(took_ms, bool) or not isinstance(took_ms, int | float) or not 0 <= took_ms < math.inf:
        return None
    return took_ms / 1000.0


def merged(output: Any, secrets: Sequence[str] = ()) -> str:
    """Return the repository that a completed job has created.

    Raises:
        StepFailed: If the job reports an error or no result.
    """
    if isinstance(output, Mapping):
        repo = output.get("model_repo_id")
        if output.get("status") != "failed" and not output.get("error") and isinstance(repo, str) and repo:
            return repo
        if output.get("error"):
            raise failure(str(output["error"]), secrets=secrets)
    raise StepFailed("The merge at RunPod ended without a result.", hint="Check the endpoint's log.")


def failure(reason: str, *, timed_out: bool = False, secrets: Sequence[str] = ()) -> StepFailed:
    """Return the error for a job that failed."""
    for secret in filter(None, secrets):
        reason = reason.replace(secret, "***")
    text = scrub(printable(reason, keep="\n")).strip().rstrip(".")[:_MAX_REASON] or "no reason was given"
    if timed_out or _TIME.search(reason):
        return StepFailed(
            "The merge at RunPod exceeded its time limit.", hint="Raise TUNEFLEET_RUNPOD_TIMEOUT_S.", detail=text
        )
    if _MEMORY.search(reason):
        return StepFailed(
            "The merge at RunPod ran out of memory.",
            hint="Give the endpoint more or larger GPUs: model and adapter must fit into their memory together.",
            detail=text,
        )
    if _AUTH.search(reason):
        return StepFailed(
            f"The merge at RunPod has no access to a repository: {text}.",
            hint="Check HF_TOKEN: it must read both models and write for TUNEFLEET_HF_USERNAME.",
        )
    return StepFailed(f"The merge at RunPod failed: {text}.", hint="Check the endpoint's log.")
