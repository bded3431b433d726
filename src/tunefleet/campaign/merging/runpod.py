"""Merge on RunPod serverless: a job there reads adapter and base from the hub, and puts the merged model there.

Which job is whose is stored with the step as soon as it is known, so that what runs is waited for, not sent again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from tunefleet.campaign.contract import CycleFailed, NeedsYou, StepFailed
from tunefleet.campaign.merging import runpod_wire as wire
from tunefleet.client.external.third_party_api import NotArrivedError, Patience, Reply, Service
from tunefleet.errors import AuthError, TunefleetError, UnreachableError
from tunefleet.settings import CampaignSettings

_FIRST_LOOK_S: Final = 2.0
_OVER: Final = frozenset({wire.COMPLETED, wire.TIMED_OUT, wire.CANCELLED, "FAILED"})
# RunPod forgets what a job has said half an hour after its end: it is looked at more often than that.
_KEPT_S: Final = 1200.0


@dataclass(frozen=True, slots=True)
class Merging:
    """Where a merge stands; stored with the step.

    Args:
        job: RunPod's id of the job that may run; null if none does.
        revision: Commit of the adapter; null for its newest.
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
        """Return where a merge stands that may be another, or that a person has let try again since."""
        anew = Merging(lora=lora, base=base, retried=retried, revision=revision)
        if (self.lora, self.base, self.revision) != (lora, base, revision):
            return anew
        if self.retried == retried:
            return self
        # A job that runs is waited for still; what failed, and what is lost, is no longer counted.
        goes_on = self.job is not None and not self.lost
        return replace(anew, job=self.job, begun_at=self.begun_at) if goes_on else anew


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job goes on."""

    job: str
    status: str
    again_s: float


@dataclass(frozen=True, slots=True)
class Merged:
    """A job has ended well.

    Args:
        verified: Whether a forward pass has proved it; null if the job does not say.
    """

    job: str
    repo: str
    verified: bool | None = None


# Stores where a merge stands, before anything is done that depends on it.
Keep = Callable[[Merging], Awaitable[None]]


class Purse(Protocol):
    """Who pays for the time of jobs."""

    async def check(self, seconds: float) -> None:
        """Refuse a job that may take so long, if there is no room for it; raises `BudgetError`."""

    async def pay(self, job: str, seconds: float) -> None:
        """Enter what a job has taken; entered again, it counts once."""


class RunPod:
    """One endpoint."""

    def __init__(
        self, settings: CampaignSettings, *, now: Callable[[], float] = time.time, patience: Patience | None = None
    ) -> None:
        key, endpoint = settings.runpod_key, settings.runpod_endpoint
        token, username = settings.hf_token, settings.hf_username
        if key is None or endpoint is None or token is None or username is None:
            given = {
                "RUNPOD_API_KEY": key,
                "RUNPOD_ENDPOINT_ID": endpoint,
                "HF_TOKEN": token,
                "HF_USERNAME": username,
            }
            lacking = ", ".join(name for name, value in given.items() if value is None)
            raise CycleFailed(
                f"A merge on RunPod needs {lacking}.", hint="Set them, or write merge.on: fleet and retry."
            )
        self._key, self._token, self._username = key, token, username
        self._settings, self._now = settings, now
        self._service = Service("RunPod", f"{settings.runpod_url.rstrip('/')}/{endpoint}", key, patience=patience)

    async def merge(
        self, known: Merging, keep: Keep, purse: Purse, *, private: bool = True, code: bool = False, anew: bool = False
    ) -> Waiting | Merged:
        """Send a job unless one runs, and say where it stands.

        Raises:
            BudgetError: If there is no room for a job in what may be spent.
            StepFailed: If the job has failed, or too many have; the next call sends another, if it may. Or if one may
                have been sent whose id was lost: RunPod cannot be asked for it, and two would be paid for.
            AuthError: If RunPod refuses the key.
            UnreachableError: If it does not answer.
        """
        if known.job is not None:
            return await self._look(known, keep, purse, known.job)
        if known.sending:
            raise NeedsYou(
                "A job may have been sent to RunPod, and its id was lost with the answer: none is sent again.",
                hint="Look at the endpoint's requests first. The command sends another job, which the image of "
                "Tunefleet ends immediately where the model is there already.",
            )
        if known.failures > self._settings.runpod_max_retries:
            raise NeedsYou(
                f"{known.failures} merges on RunPod have failed, the last one so: {known.why}",
                hint="The command starts again with the first.",
            )
        seconds = self._settings.runpod_timeout_s
        await purse.check(seconds)
        token = self._token.get_secret_value() if self._settings.runpod_send_token else None
        account = self._username
        body = wire.request(
            known.lora,
            known.base,
            token=token,
            username=account,
            seconds=seconds,
            private=private,
            code=code,
            revision=known.revision,
            anew=anew,
        )
        job = await self._send(known, keep, body)
        await keep(replace(known, job=job, begun_at=self._now()))
        return Waiting(job, wire.QUEUED, _FIRST_LOOK_S)

    async def _send(self, known: Merging, keep: Keep, body: dict[str, Any]) -> str:
        """Send a job, having kept that one is sent; what surely was not taken is sent again by the next call."""
        await keep(replace(known, sending=True))
        try:
            reply = await self._service.post("/run", body)
        except NotArrivedError:
            await keep(known)
            raise
        if reply.uncertain:
            raise UnreachableError(f"RunPod answers {reply.status}; whether it has taken the job is not known.")
        if not reply.good:
            await keep(known)
        said = _checked(reply).body
        job = said.get("id") if isinstance(said, dict) else None
        if not job:
            raise StepFailed("RunPod has taken a job, and does not say its id.")
        return str(job)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._service.close()

    async def _look(self, known: Merging, keep: Keep, purse: Purse, job: str) -> Waiting | Merged:
        longest = min(self._settings.runpod_poll_s, _KEPT_S)
        try:
            reply = await self._service.get(f"/status/{job}")
        except UnreachableError as error:
            # The job goes on without us: a lost look is no failure.
            return Waiting(job, f"out of sight: {error.message}", longest)
        if reply.status == 404:
            # It may have come to its end while nobody looked: another one is paid for, too.
            await purse.pay(job, self._longest_s(known))
            await keep(replace(known, lost=True))
            raise NeedsYou(
                f"RunPod does not know the job {job} any more, and none is sent again.",
                hint="Look at the account on the hub first. The command sends another job, which the image of "
                "Tunefleet ends immediately where the model is there already.",
            )
        body = _checked(reply).body
        said = body if isinstance(body, dict) else {}
        status = str(said.get("status", "no status"))
        secrets = (self._token.get_secret_value(), self._key.get_secret_value())
        if status in _OVER:
            took_s = wire.took_s(said)
            await purse.pay(job, self._longest_s(known) if took_s is None else took_s)
        if status == wire.COMPLETED:
            try:
                output = said.get("output")
                return Merged(job, wire.merged(output, secrets), wire.verified(output))
            except StepFailed as error:
                raise await self._failed(known, keep, error) from None
        if status in _OVER:
            why = (
                said.get("error")
                or said.get("output")
                or ("somebody has cancelled it" if status == "CANCELLED" else "")
            )
            failed = wire.failure(str(why), timed_out=status == wire.TIMED_OUT, secrets=secrets)
            raise await self._failed(known, keep, failed)
        # Any other status, also one that is new there, is one of a job that goes on.
        waited = max(0.0, self._now() - known.begun_at)
        return Waiting(job, status, min(max(waited / 5, _FIRST_LOOK_S), longest))

    def _longest_s(self, known: Merging) -> float:
        """Return how long a job may have run of which RunPod does not say it."""
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
        return AuthError("RunPod refuses the key.", hint="Check RUNPOD_API_KEY and RUNPOD_ENDPOINT_ID.")
    if reply.status == 404:
        return StepFailed("RunPod has no such endpoint.", hint="Check RUNPOD_ENDPOINT_ID.")
    if reply.status == 402:
        return NeedsYou("RunPod wants to be paid first.", hint="Add credit to the account first.")
    return StepFailed(f"RunPod answers {reply.status}.")
