"""What RunPod serverless is told, and what it and the job there say."""

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
_MOST_SAID: Final = 300


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
        token: Reads both, and writes the result; null if the endpoint has one.
        revision: Commit of the adapter's repository; null for its newest.
    """
    # A random name ("anonimize", as the document spells it) could not be found again after a kill.
    said: dict[str, Any] = {"lora_model_id": lora, "base_model_id": base, "anonimize": False, "hf_username": username}
    if token is not None:
        said["hf_token"] = token
    if not private:
        said["private"] = False
    if revision is not None:
        said["lora_revision"] = revision
    if anew:
        said["merge_anew"] = True
    if code:
        said["trust_remote_code"] = True
    return {"input": said, "policy": {"executionTimeout": int(seconds * 1000)}}


def verified(output: Any) -> bool | None:
    """Return whether a forward pass has proved a merge; null if the job does not say."""
    said = output.get("verified") if isinstance(output, Mapping) else None
    return said if isinstance(said, bool) else None


def took_s(said: Mapping[str, Any]) -> float | None:
    """Return how long a job that has ended has run, in seconds; null if RunPod does not say."""
    took_ms = said.get("executionTime")
    if isinstance(took_ms, bool) or not isinstance(took_ms, int | float) or not 0 <= took_ms < math.inf:
        return None
    return took_ms / 1000.0


def merged(output: Any, secrets: Sequence[str] = ()) -> str:
    """Return the repository that a completed job has made.

    Raises:
        StepFailed: If it says that it has failed, or says nothing.
    """
    if isinstance(output, Mapping):
        repo = output.get("model_repo_id")
        if output.get("status") != "failed" and not output.get("error") and isinstance(repo, str) and repo:
            return repo
        if output.get("error"):
            raise failure(str(output["error"]), secrets=secrets)
    raise StepFailed("The merge at RunPod has ended without a result.", hint="Look at the endpoint's log.")


def failure(said: str, *, timed_out: bool = False, secrets: Sequence[str] = ()) -> StepFailed:
    """Return the error for a job that failed."""
    for secret in filter(None, secrets):
        said = said.replace(secret, "***")
    text = scrub(printable(said, keep="\n")).strip().rstrip(".")[:_MOST_SAID] or "no reason was given"
    if timed_out or _TIME.search(said):
        return StepFailed("The merge at RunPod took longer than it may.", hint="Raise RUNPOD_TIMEOUT.", detail=text)
    if _MEMORY.search(said):
        return StepFailed(
            "The merge at RunPod ran out of memory.",
            hint="Give the endpoint more or larger GPUs: model and adapter must fit into them together.",
            detail=text,
        )
    if _AUTH.search(said):
        return StepFailed(
            f"The merge at RunPod may not read or write a repository: {text}.",
            hint="Check HF_TOKEN: it must read both models and write for HF_USERNAME.",
        )
    return StepFailed(f"The merge at RunPod has failed: {text}.", hint="Look at the endpoint's log.")
