"""Merge on RunPod serverless: a job reads adapter and base from the Hub, and uploads the merged model there.

The job's id is stored with the step as soon as it is known, so that a running job is not submitted again.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tunefleet.campaign.contract import CycleFailed, NeedsYou, StepFailed
from tunefleet.client.external.third_party_api import NotArrivedError, Patience, Reply, Service
from tunefleet.errors import AuthError, TunefleetError, UnreachableError, printable
from tunefleet.observability.logs import scrub
from tunefleet.settings import CampaignSettings

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
_FIRST_POLL_S: Final = 2.0
_FINAL: Final = frozenset({COMPLETED, TIMED_OUT, CANCELLED, "FAILED"})
# RunPod drops a job's result half an hour after its end, so it is polled more often than that.
_RESULT_KEPT_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class Merging:
    """The state of a merge, stored with the step.

    Args:
        job: RunPod id of the job that may be running; None if there is none.
        sending: Whether a job was submitted whose id is not known yet.
        lost: Whether RunPod no longer knows the job.
        revision: Commit of the adapter; None for its newest.
    """

    job: str | None = None
    begun_at: float = 0.0
    failures: int = 0
    why: str | None = None
    lora: str = ""
    base: str = ""
    sending: bool = False
    lost: bool = False
    retried: int = 0
    revision: str | None = None

    def of(self, lora: str, base: str, retried: int, revision: str | None = None) -> Merging:
        """Return the state for these inputs: reset if they differ, or if a user has requested a retry since."""
        fresh = Merging(lora=lora, base=base, retried=retried, revision=revision)
        if (self.lora, self.base, self.revision) != (lora, base, revision):
            return fresh
        if self.retried == retried:
            return self
        # After a retry a running job is still waited for; failures and a lost job no longer count.
        still_running = self.job is not None and not self.lost
        return replace(fresh, job=self.job, begun_at=self.begun_at) if still_running else fresh


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job is still running."""

    job: str
    status: str
    again_s: float


@dataclass(frozen=True, slots=True)
class Merged:
    """A job has succeeded.

    Args:
        verified: Whether a forward pass has verified the model; None if the job does not report it.
    """

    job: str
    repo: str
    verified: bool | None = None


# Stores the state of a merge, before anything is done that depends on it.
Keep = Callable[[Merging], Awaitable[None]]


class JobBudget(Protocol):
    """The budget that pays for jobs."""

    async def check(self, seconds: float) -> None:
        """Raise `BudgetError` if the budget does not allow a job of this duration."""

    async def pay(self, job: str, seconds: float) -> None:
        """Record a job's duration; recorded again, it counts once."""


class RunPod:
    """A RunPod serverless endpoint."""

    def __init__(
        self, settings: CampaignSettings, *, now: Callable[[], float] = time.time, patience: Patience | None = None
    ) -> None:
        key, endpoint = settings.runpod_key, settings.runpod_endpoint
        token, username = settings.hf_token, settings.hf_username
        if key is None or endpoint is None or token is None or username is None:
            given = {
                "RUNPOD_API_KEY": key,
                "TUNEFLEET_RUNPOD_ENDPOINT": endpoint,
                "HF_TOKEN": token,
                "TUNEFLEET_HF_USERNAME": username,
            }
            missing = ", ".join(name for name, value in given.items() if value is None)
            raise CycleFailed(
                f"A merge on RunPod needs {missing}.", hint="Set them, or set `merge.on: fleet` and retry."
            )
        self._key, self._token, self._username = key, token, username
        self._settings, self._now = settings, now
        self._service = Service("RunPod", f"{settings.runpod_url.rstrip('/')}/{endpoint}", key, patience=patience)

    async def merge(
        self,
        known: Merging,
        keep: Keep,
        budget: JobBudget,
        *,
        private: bool = True,
        code: bool = False,
        again: bool = False,
    ) -> Waiting | Merged:
        """Submit a job unless one is running, and return its state.

        Raises:
            BudgetError: If the budget does not allow a job.
            StepFailed: If the job has failed, or too many have; the next call submits another if allowed. Also if a job
                may have been submitted whose id was lost: RunPod cannot be queried for it, and two would be paid for.
            AuthError: If RunPod rejects the key.
            UnreachableError: If RunPod does not respond.
        """
        if known.job is not None:
            return await self._poll(known, keep, budget, known.job)
        if known.sending:
            raise NeedsYou(
                "A job may have been submitted to RunPod, and its id was lost with the response; no other is sent.",
                hint="Check the endpoint's requests first. The command submits another job, which the image of "
                "Tunefleet ends immediately if the model already exists.",
            )
        if known.failures > self._settings.runpod_max_retries:
            raise NeedsYou(
                f"{known.failures} merges on RunPod have failed. Last error: {known.why}",
                hint="The command resets the count and tries again.",
            )
        seconds = self._settings.runpod_timeout_s
        await budget.check(seconds)
        token = self._token.get_secret_value() if self._settings.runpod_send_token else None
        account = self._username
        body = _merge_request(
            known.lora,
            known.base,
            token=token,
            username=account,
            seconds=seconds,
            private=private,
            code=code,
            revision=known.revision,
            again=again,
        )
        job = await self._submit(known, keep, body)
        await keep(replace(known, job=job, begun_at=self._now()))
        return Waiting(job, QUEUED, _FIRST_POLL_S)

    async def _submit(self, known: Merging, keep: Keep, body: dict[str, Any]) -> str:
        """Record that a job is being submitted, and submit it; undo the record if it certainly was not accepted."""
        await keep(replace(known, sending=True))
        try:
            reply = await self._service.post("/run", body)
        except NotArrivedError:
            await keep(known)
            raise
        if reply.uncertain:
            raise UnreachableError(f"RunPod returned {reply.status}; it is unknown whether it has accepted the job.")
        if not reply.good:
            await keep(known)
        payload = _checked(reply).body
        job = payload.get("id") if isinstance(payload, dict) else None
        if not job:
            raise StepFailed("RunPod has accepted a job without returning its id.")
        return str(job)

    async def close(self) -> None:
        """Close connections."""
        await self._service.close()

    async def _poll(self, known: Merging, keep: Keep, budget: JobBudget, job: str) -> Waiting | Merged:
        longest = min(self._settings.runpod_poll_s, _RESULT_KEPT_S)
        try:
            reply = await self._service.get(f"/status/{job}")
        except UnreachableError as error:
            # The job continues without us: a failed poll is not a failure of the step.
            return Waiting(job, f"not reachable: {error.message}", longest)
        if reply.status == 404:
            # It may have succeeded between two polls, and another job would be paid for too: a user decides.
            await budget.pay(job, self._longest_s(known))
            await keep(replace(known, lost=True))
            raise NeedsYou(
                f"RunPod no longer knows job {job}; no other is submitted.",
                hint="Check the account on the Hub first. The command submits another job, which the image of "
                "Tunefleet ends immediately if the model already exists.",
            )
        body = _checked(reply).body
        payload = body if isinstance(body, dict) else {}
        status = str(payload.get("status", "no status"))
        secrets = (self._token.get_secret_value(), self._key.get_secret_value())
        if status in _FINAL:
            took_s = _job_duration_s(payload)
            await budget.pay(job, self._longest_s(known) if took_s is None else took_s)
        if status == COMPLETED:
            try:
                output = payload.get("output")
                return Merged(job, _merged_repository(output, secrets), _is_verified(output))
            except StepFailed as error:
                raise await self._failed(known, keep, error) from None
        if status in _FINAL:
            why = payload.get("error") or payload.get("output") or ("it was cancelled" if status == "CANCELLED" else "")
            failed = merge_failure(str(why), timed_out=status == TIMED_OUT, secrets=secrets)
            raise await self._failed(known, keep, failed)
        # Any other status, including unknown ones, means that the job is still running.
        waited = max(0.0, self._now() - known.begun_at)
        return Waiting(job, status, min(max(waited / 5, _FIRST_POLL_S), longest))

    def _longest_s(self, known: Merging) -> float:
        """Return the longest duration of a job whose duration RunPod does not report."""
        return min(max(0.0, self._now() - known.begun_at), self._settings.runpod_timeout_s)

    async def _failed(self, known: Merging, keep: Keep, error: StepFailed) -> StepFailed:
        await keep(replace(known, job=None, begun_at=0.0, failures=known.failures + 1, why=str(error), lost=False))
        return error


def _checked(reply: Reply) -> Reply:
    if reply.good:
        return reply
    raise _refusal(reply)


def _refusal(reply: Reply) -> TunefleetError:
    if reply.status in {401, 403}:
        return AuthError("RunPod rejects the key.", hint="Check RUNPOD_API_KEY and TUNEFLEET_RUNPOD_ENDPOINT.")
    if reply.status == 404:
        return StepFailed("RunPod has no such endpoint.", hint="Check TUNEFLEET_RUNPOD_ENDPOINT.")
    if reply.status == 402:
        return NeedsYou("RunPod requires payment.", hint="Add credit to the account.")
    return StepFailed(f"RunPod returned {reply.status}.")


def _merge_request(  # noqa: PLR0913 -- the fields of a job
    lora: str,
    base: str,
    *,
    token: str | None,
    username: str,
    seconds: float,
    private: bool = True,
    code: bool = False,
    revision: str | None = None,
    again: bool = False,
) -> dict[str, Any]:
    """Return the body of a job."""
    # "anonimize" (the API's spelling) would give the repository a random name, which could not be found after a crash.
    job: dict[str, Any] = {"lora_model_id": lora, "base_model_id": base, "anonimize": False, "hf_username": username}
    if token is not None:
        job["hf_token"] = token
    if not private:
        job["private"] = False
    if revision is not None:
        job["lora_revision"] = revision
    if again:
        job["merge_anew"] = True
    if code:
        job["trust_remote_code"] = True
    return {"input": job, "policy": {"executionTimeout": int(seconds * 1000)}}


def _is_verified(output: Any) -> bool | None:
    """Return whether a forward pass has verified a merge; None if the job does not report it."""
    value = output.get("verified") if isinstance(output, Mapping) else None
    return value if isinstance(value, bool) else None


def _job_duration_s(payload: Mapping[str, Any]) -> float | None:
    """Return the duration of a finished job in seconds; None if RunPod does not report it."""
    took_ms = payload.get("executionTime")
    if isinstance(took_ms, bool) or not isinstance(took_ms, int | float) or not 0 <= took_ms < math.inf:
        return None
    return took_ms / 1000.0


def _merged_repository(output: Any, secrets: Sequence[str] = ()) -> str:
    """Return the repository that a completed job has created."""
    if isinstance(output, Mapping):
        repo = output.get("model_repo_id")
        if output.get("status") != "failed" and not output.get("error") and isinstance(repo, str) and repo:
            return repo
        if output.get("error"):
            raise merge_failure(str(output["error"]), secrets=secrets)
    raise StepFailed("The merge at RunPod ended without a result.", hint="Check the endpoint's log.")


def merge_failure(reason: str, *, timed_out: bool = False, secrets: Sequence[str] = ()) -> StepFailed:
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
