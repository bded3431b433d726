"""A job of the endpoint: downloads adapter and base from the Hub, merges them, and uploads the merged model.

Input: `lora_model_id`, `base_model_id`, `anonimize`, `hf_token`, `hf_username`; token and account may come from the
endpoint's own environment instead (`HF_TOKEN`, `HF_USERNAME`), `private: false` creates a public repository,
`trust_remote_code: true` runs the base's own code, `lora_revision` is the adapter's commit, and
`merge_anew: true` repeats a merge that exists already. Output: `model_repo_id` and
`status: success`, or `error` and `status: failed`. The input is never logged: it has a token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import InputError, TunefleetError
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.workloads.runpod.repository import Parts, Repository

logger = logging.getLogger(__name__)
_KIND: Final = "merge"
_PROGRAM: Final = "tunefleet.workloads.merging:main"
_PRODUCT: Final = "final_model"
_KEPT_BACK: Final = "RUNPOD_"
"""Prefix of RunPod's own credentials, which a merge does not need."""


@dataclass(frozen=True, slots=True)
class JobInput:
    """The input of a job.

    Args:
        revision: Commit of the adapter; None for the newest.
    """

    lora: str
    base: str
    username: str
    token: str = field(repr=False)
    anonymise: bool = False
    private: bool = True
    code: bool = False
    revision: str | None = None
    merge_again: bool = False

    @staticmethod
    def read(given: Any, environment: Mapping[str, str]) -> JobInput:
        """Read the input of a job.

        Raises:
            InputError: If a field is missing, or has the wrong type; names the field but not its value.
        """
        fields = given if isinstance(given, Mapping) else {}
        texts = {
            "lora_model_id": fields.get("lora_model_id"),
            "base_model_id": fields.get("base_model_id"),
            "hf_username": fields.get("hf_username") or environment.get("HF_USERNAME"),
            "hf_token": fields.get("hf_token") or environment.get("HF_TOKEN"),
        }
        wrong = [name for name, value in texts.items() if not isinstance(value, str) or not value]
        if wrong:
            raise InputError(f"The job's input lacks {', '.join(wrong)}.")
        defaults = {"anonimize": False, "private": True, "trust_remote_code": False, "merge_anew": False}
        switches = {name: fields.get(name, default) for name, default in defaults.items()}
        wrong = [name for name, value in switches.items() if not isinstance(value, bool)]
        if wrong:
            raise InputError(f"{' and '.join(wrong)} of the job's input must be true or false.")
        revision = fields.get("lora_revision")
        if revision is not None and not isinstance(revision, str):
            raise InputError("lora_revision of the job's input must be text.")
        lora, base, username, token = map(str, texts.values())
        anonymise, private, code, merge_again = switches.values()
        return JobInput(lora, base, username, token, anonymise, private, code, revision, merge_again)


async def handler(job: Mapping[str, Any]) -> dict[str, Any]:
    """Process a job."""
    token = ""
    try:
        wanted = JobInput.read(job.get("input"), os.environ)
        token = wanted.token
        return await _done(wanted)
    except Exception as error:  # noqa: BLE001 -- any error becomes the job's answer, and the worker continues
        foreseen = isinstance(error, TunefleetError)
        text = str(error) if foreseen else f"{type(error).__name__}: {error}"
        details = text if foreseen else traceback.format_exc()
        logger.error("Job %s failed: %s", job.get("id"), _without(token, details))  # noqa: TRY400 -- without the token
        return {"error": _without(token, text), "status": "failed"}


def _without(token: str, text: str) -> str:
    return text.replace(token, "***") if token else text


async def _done(wanted: JobInput) -> dict[str, Any]:
    place = Repository(wanted.username, wanted.token, private=wanted.private)
    parts = await asyncio.to_thread(place.parts, wanted.lora, wanted.base, wanted.revision)
    name, exists = await asyncio.to_thread(place.name, parts, anonymise=wanted.anonymise)
    if exists and not wanted.merge_again:
        logger.info("%s already holds this merge", name)
        return {"model_repo_id": name, "status": "success"}
    with tempfile.TemporaryDirectory(prefix="tunefleet-merge-") as folder:
        if parts.whole:
            logger.info("%s is a complete model: nothing is merged", wanted.lora)
            made = MergedModel(await asyncio.to_thread(place.copied, parts), verified=None)
        else:
            made = await merge(parts, wanted.token, Path(folder), trust=wanted.code)
        name = await asyncio.to_thread(place.put, name, made.folder, parts)
    logger.info("%s and %s are merged into %s", parts.lora, parts.base, name)
    return {"model_repo_id": name, "status": "success", "verified": made.verified}


class MergeFailed(TunefleetError):
    """The merge of a job failed."""

    code = "merge_failed"


@dataclass(frozen=True, slots=True)
class MergedModel:
    """A model that is ready for upload.

    Args:
        verified: Whether a forward pass verified it; None if nothing was merged.
    """

    folder: Path
    verified: bool | None


async def merge(parts: Parts, token: str, folder: Path, *, trust: bool = False) -> MergedModel:
    """Merge in bf16; sums are computed in float32, a few megabytes at a time, so that no model is too large.

    Raises:
        MergeFailed: If it failed; the message starts with `out of memory` if that was the reason.
    """
    job = JobFolder(folder)
    spec = {
        "taskType": _KIND,
        "model": {
            "source": {"identifier": parts.base, "revision": parts.base_commit, "trust_remote_code": trust},
            "adapters": [{"path": parts.lora, "revision": parts.lora_commit}],
        },
        "merge": {"dtype": "bfloat16", "verify": "auto"},
    }
    whole = Job(
        job_id=_KIND, task_id=_KIND, attempt=1, launch=_KIND, kind=_KIND, name=parts.lora, program=_PROGRAM, spec=spec
    )
    job.job_json.write_text(whole.model_dump_json())
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_KEPT_BACK)}
    code = await _ran(["-m", "tunefleet.workloads.entrypoint", str(folder)], {**environment, "HF_TOKEN": token})
    if code != 0:
        raise MergeFailed(_why(job, code))
    result: dict[str, Any] = json.loads(job.responses_json.read_bytes())
    return MergedModel(folder / _PRODUCT, verified=result["verification"] is not None)


async def _ran(arguments: list[str], environment: dict[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        return await process.wait()
    finally:
        # Cancelled by RunPod: the merge must not go on in the background.
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _why(job: JobFolder, code: int) -> str:
    if code == -signal.SIGKILL:
        return "out of memory: the system killed the merge"
    try:
        status = JobStatus.model_validate_json(job.status_json.read_bytes())
    except (OSError, ValueError):
        return f"the merge ended with code {code}, without an error message"
    reason = status.error or f"the merge ended with code {code}"
    return f"out of memory: {reason}" if status.error_kind == "oom" else reason
