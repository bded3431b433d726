"""Merge on RunPod serverless: a job there reads adapter and base from the hub, and puts the merged model there.

Which job is whose is written to a file as soon as it is known, so that what runs is waited for, not sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import orjson

from tunefleet.artifacts import replace_file
from tunefleet.campaign.contract import CycleFailed, StepFailed
from tunefleet.campaign.merging import runpod_wire as wire
from tunefleet.client.service import NotArrivedError, Patience, Reply, Service
from tunefleet.errors import AuthError, TunefleetError, UnreachableError
from tunefleet.settings import CampaignSettings

_FIRST_LOOK_S: Final = 2.0
_KEPT_S: Final = 1200.0
"""RunPod forgets what a job has said half an hour after its end: it is looked at more often than that."""


@dataclass(frozen=True, slots=True)
class Merging:
    """Where a merge stands; stored.

    Args:
        job: RunPod's id of the job that may run; null if none does.
        begun_at: When that was sent, in Unix time.
        failures: How many jobs have failed.
        why: How the last one did.
        key: Of the merge.
        sending: Whether a job may have been sent whose id is not known.
    """

    job: str | None = None
    begun_at: float = 0.0
    failures: int = 0
    why: str | None = None
    key: str = ""
    sending: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job goes on.

    Args:
        job: RunPod's id.
        status: In RunPod's words.
        again_s: In how many seconds to look again.
    """

    job: str
    status: str
    again_s: float


@dataclass(frozen=True, slots=True)
class Merged:
    """A job has ended well.

    Args:
        job: RunPod's id.
        repo: What it has made.
        verified: Whether a forward pass has proved it; null if the job does not say.
    """

    job: str
    repo: str
    verified: bool | None = None


def folder_of(settings: CampaignSettings) -> Path:
    """Return where it is kept which job is whose."""
    return settings.home.expanduser() / "runpod"


def forget(settings: CampaignSettings, campaign_id: str, *, but: str | None = None) -> None:
    """Remove what is kept of a campaign's jobs: their outcome is stored, or nobody waits for it any more.

    Args:
        settings: Say where it is.
        campaign_id: Of the campaign.
        but: Key of a merge that goes on.
    """
    for path in sorted(folder_of(settings).glob("*.json")):
        key = str(orjson.loads(path.read_bytes()).get("key", ""))
        if key.startswith(f"{campaign_id}/") and key != but:
            path.unlink(missing_ok=True)


class RunPod:
    """One endpoint.

    Args:
        settings: With the key, the endpoint and the hub's token.
        now: The time, in Unix time.
        patience: For looks.

    Raises:
        CycleFailed: If something is not set.
    """

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
        self._token, self._username = token, username
        self._settings, self._now = settings, now
        self._folder = folder_of(settings)
        self._service = Service("RunPod", f"{settings.runpod_url.rstrip('/')}/{endpoint}", key, patience=patience)

    async def merge(self, key: str, lora: str, base: str, *, private: bool = True) -> Waiting | Merged:
        """Send a job unless one runs, and say where it stands.

        Args:
            key: Of the merge: the same one is sent once, until its job has failed.
            lora: The adapter's repository.
            base: The base's.
            private: Whether the result is private.

        Raises:
            StepFailed: If the job has failed, or too many have; the next call sends another, if it may. Or if one may
                have been sent whose id was lost: RunPod cannot be asked for it, and two would be paid for.
            AuthError: If RunPod refuses the key.
            UnreachableError: If it does not answer.
        """
        known = await asyncio.to_thread(self._read, key)
        if known.job is not None:
            return await self._look(key, known, known.job)
        if known.sending:
            raise StepFailed(
                "A job may have been sent to RunPod, and its id was lost with the answer: none is sent again.",
                hint="Look at the endpoint's requests. `tunefleet campaign retry` sends another, which the image of "
                "Tunefleet ends at once where the model is there already.",
            )
        if known.failures > self._settings.runpod_max_retries:
            raise StepFailed(
                f"{known.failures} merges on RunPod have failed, the last one so: {known.why}",
                hint="`tunefleet campaign retry` begins anew.",
            )
        seconds = self._settings.runpod_timeout_s
        token = self._token.get_secret_value() if self._settings.runpod_send_token else None
        body = wire.request(lora, base, token=token, username=self._username, seconds=seconds, private=private)
        job = await self._send(key, known, body)
        begun = Merging(job, self._now(), known.failures, known.why, key)
        await asyncio.to_thread(self._write, key, begun)
        return Waiting(job, wire.QUEUED, _FIRST_LOOK_S)

    async def _send(self, key: str, known: Merging, body: dict[str, Any]) -> str:
        """Send a job, having written that one is sent; what surely was not taken is sent again by the next call."""
        await asyncio.to_thread(self._write, key, replace(known, key=key, sending=True))
        try:
            reply = await self._service.post("/run", body)
        except NotArrivedError:
            await asyncio.to_thread(self._write, key, replace(known, key=key))
            raise
        if reply.uncertain:
            raise UnreachableError(f"RunPod answers {reply.status}; whether it has taken the job is not known.")
        if not reply.good:
            await asyncio.to_thread(self._write, key, replace(known, key=key))
        said = _checked(reply).body
        job = said.get("id") if isinstance(said, dict) else None
        if not job:
            raise StepFailed("RunPod has taken a job, and does not say its id.")
        return str(job)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._service.close()

    async def _look(self, key: str, known: Merging, job: str) -> Waiting | Merged:
        reply = await self._service.get(f"/status/{job}")
        if reply.status == 404:
            raise await self._failed(key, known, StepFailed(f"RunPod does not know the job {job} any more."))
        body = _checked(reply).body
        said = body if isinstance(body, dict) else {}
        status = str(said.get("status", "no status"))
        if status == wire.COMPLETED:
            try:
                output = said.get("output")
                return Merged(job, wire.merged(output), wire.verified(output))
            except StepFailed as error:
                raise await self._failed(key, known, error) from None
        if status in {wire.TIMED_OUT, wire.CANCELLED, "FAILED"}:
            why = (
                said.get("error")
                or said.get("output")
                or ("somebody has cancelled it" if status == "CANCELLED" else "")
            )
            raise await self._failed(key, known, wire.failure(str(why), timed_out=status == wire.TIMED_OUT))
        # Any other status, also one that is new there, is one of a job that goes on.
        waited = max(0.0, self._now() - known.begun_at)
        longest = min(self._settings.runpod_poll_s, _KEPT_S)
        return Waiting(job, status, min(max(waited / 5, _FIRST_LOOK_S), longest))

    async def _failed(self, key: str, known: Merging, error: StepFailed) -> StepFailed:
        await asyncio.to_thread(self._write, key, Merging(failures=known.failures + 1, why=str(error), key=key))
        return error

    def _place(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"

    def _read(self, key: str) -> Merging:
        try:
            return Merging(**orjson.loads(self._place(key).read_bytes()))
        except FileNotFoundError:
            return Merging()

    def _write(self, key: str, merging: Merging) -> None:
        place = self._place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_suffix(".part")
        with part.open("wb") as file:
            file.write(orjson.dumps(asdict(merging)))
            file.flush()
            os.fsync(file.fileno())
        replace_file(part, place)


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
        return StepFailed("RunPod wants to be paid first.", hint="Add credit to the account, then retry.")
    return StepFailed(f"RunPod answers {reply.status}.")
