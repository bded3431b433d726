"""The merge of a job, as a process of its own: what it takes of memory ends with it, and its end says how it went."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tunefleet.errors import TunefleetError
from tunefleet.schemas.job_folder import Job, JobFolder, JobStatus
from tunefleet.workloads.runpod.repository import Parts

_KIND: Final = "merge"
_PROGRAM: Final = "tunefleet.workloads.merging:main"
_PRODUCT: Final = "final_model"
_KEPT_BACK: Final = "RUNPOD_"
"""Variables of that name hold RunPod's keys, which a merge need not have."""


class MergeFailed(TunefleetError):
    """The merge of a job has failed."""

    code = "merge_failed"


@dataclass(frozen=True, slots=True)
class Made:
    """A model that can be put on the hub.

    Args:
        verified: Whether a forward pass has proved it; null if nothing was merged.
    """

    folder: Path
    verified: bool | None


async def merge(parts: Parts, token: str, folder: Path, *, trust: bool = False) -> Made:
    """Merge in bf16; the sums are made in float32, a few megabytes at a time, so that no model is too large.

    Raises:
        MergeFailed: If it failed; the sentence begins with `out of memory` where that was the reason.
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
    return Made(folder / _PRODUCT, verified=result["verification"] is not None)


async def _ran(arguments: list[str], environment: dict[str, str]) -> int:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, env=environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
    )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _why(job: JobFolder, code: int) -> str:
    if code == -signal.SIGKILL:
        return "out of memory: the system has ended the merge"
    try:
        status = JobStatus.model_validate_json(job.status_json.read_bytes())
    except (OSError, ValueError):
        return f"the merge has ended with code {code}, and says nothing"
    said = status.error or f"the merge has ended with code {code}"
    return f"out of memory: {said}" if status.error_kind == "oom" else said
