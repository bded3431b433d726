"""The program of a push task: check of the target → files and their digest → model card → upload.

May be killed at any time and relaunched in the same folder: files that an earlier launch uploaded are overwritten.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from tunefleet import settings
from tunefleet.artifacts import LocalFile, manifest_digest, scan, scan_size
from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import InputError
from tunefleet.fsutil import Progress, write_file, write_folder
from tunefleet.integrations.publishing.card import CARD, Lineage, figures_of, write_card
from tunefleet.integrations.publishing.targets import PublishOptions, target
from tunefleet.schemas.job_folder import Job
from tunefleet.spec.base import is_written_as_path
from tunefleet.spec.documents.paths import RESULT
from tunefleet.spec.options.publish_target import hub_repository
from tunefleet.spec.tasks.push_task import PushOptions, PushTaskSpec
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.common import job_secrets
from tunefleet.workloads.common.job import OpenedJob, open_task

# Key of a job's inputs for files that a worker fetched.
FETCHED: Final = "checkpoint.load"
_STAGED: Final = "published"
# Written once the target was found to be empty: files there are then those of this task.
CHECKED: Final = ".push.json"
_ADAPTER: Final = "adapter_config.json"
_MAX_BYTES: Final = 16 << 20


def main(folder: Path) -> None:
    """Run the publishing of a job folder.

    Raises:
        ConflictError: If the target is not empty, or public although the task requires a private one.
        ForbiddenError: If there are no credentials, or they have no write access.
        InputError: If the files to publish are not on this worker.
        UnreachableError: If the target does not respond.
    """
    # Secrets are filled into the credentials only: everything else is published or reported.
    task = open_task(folder, PushTaskSpec, filled=False)
    write_file(task.folder.responses_json, json.dumps(_published(task), indent=1).encode())
    shutil.rmtree(folder / _STAGED, ignore_errors=True)


def _published(task: OpenedJob[PushTaskSpec]) -> dict[str, Any]:
    push = task.spec.push
    task.journal.event("push.checking", f"Checking {push.to}.")
    task.journal.progress("checking")
    marker, mine = task.folder.root / CHECKED, {"to": push.to, "revision": push.revision}
    repeated = read_json(marker) == mine
    place = target(push.to, _options(push, force=push.force or repeated), _credentials(push))
    place.check()
    write_json(marker, mine, sync=True)

    source = _source(task)
    files = scan(source, progress=_reporter(task, "reading", scan_size(source)))
    digest = manifest_digest(file.entry for file in files)
    staged = task.folder.root / _STAGED
    write_folder(staged, lambda root: _stage(files, root))
    card_written = write_card(staged, _lineage_of(task.spec, task.job, source, digest))

    sizes = {path.relative_to(staged).as_posix(): path.stat().st_size for path in staged.rglob("*") if path.is_file()}
    total = sum(sizes.values())
    noun = "file" if len(sizes) == 1 else "files"
    task.journal.event("push.uploading", f"Uploading {len(sizes)} {noun} to {push.to}.", data={"bytes": total})
    made = place.put(staged, _reporter(task, "uploading", total))
    url = made.url or made.location
    task.journal.event("push.published", f"Published to {url}.", data={"url": url, "bytes": total})
    return {
        "ok": True,
        "task_id": task.job.task_id,
        "to": push.to,
        "url": url,
        "commit": made.commit,
        "files": sorted(sizes),
        "size_bytes": total,
        "digest": digest,
        "card_written": card_written,
    }


def _options(push: PushOptions, *, force: bool) -> PublishOptions:
    return PublishOptions(push.revision, push.private, push.message, force, require_private=push.private)


def _credentials(push: PushOptions) -> settings.PublishSettings:
    """Return the token for the Hub, the worker's unless the task names one, or the task's keys for a bucket."""
    # Jobs do not read `.env`.
    found = settings.load(settings.PublishSettings, _env_file=None)
    named = {"hf_token": push.hf_token, "s3_access_key": push.access_key, "s3_secret_key": push.secret_key}
    given = job_secrets.filled({name: text for name, text in named.items() if text is not None})
    keys = {name: SecretStr(value) for name, value in given.items()}
    if hub_repository(push.to) is not None:
        return found.model_copy(update=keys)
    # Without the worker's session token, which belongs to its own keys.
    return found.model_copy(update={**keys, "s3_session_token": None})


def _source(task: OpenedJob[PushTaskSpec]) -> Path:
    """Return the file or folder to publish."""
    pointer, inputs = task.spec.start_pointer, task.job.inputs
    given = inputs.get(pointer) or inputs.get(FETCHED)
    if given is None:
        raise InputError(f"spec.{pointer}: the files to publish are not on this worker.")
    path = only_folder(unpacked_path(Path(given), task.workspace))
    subdir = task.spec.start.subdir
    path = path if subdir is None else path / subdir
    if not path.exists():
        raise InputError(f"spec.checkpoint.load.subdir: there is no {subdir!r} in the files.")
    return path


def _stage(files: Sequence[LocalFile], root: Path) -> None:
    """Lay out the files in a folder of this job, since the source belongs to another task or to all of them."""
    for file in files:
        place = root / file.entry.path
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.entry.path == CARD:
            shutil.copyfile(file.path, place)  # may be replaced
        else:
            place.symlink_to(file.path.resolve())


def _reporter(task: OpenedJob[PushTaskSpec], phase: str, total: int) -> Progress:
    """Return a callback that reports bytes, in the journal as MiB."""
    done, scale = 0, max(1, total >> 20)

    def report(count: int) -> None:
        nonlocal done
        done += count
        task.journal.progress(phase, step=min(scale, done >> 20), max_steps=scale)

    report(0)
    return report


def _lineage_of(spec: PushTaskSpec, job: Job, source: Path, digest: str) -> Lineage:
    """Return the lineage of the files to publish.

    Args:
        source: File or folder to publish.
        digest: Its digest.
    """
    adapter = _json(source / _ADAPTER)
    run = spec.start.task
    # A local path takes precedence over the task, whose result then describes other files.
    known = run is not None and spec.start_pointer not in job.inputs and RESULT in job.inputs
    result = _result(Path(job.inputs[RESULT])) if known else {}
    parents = _mapping(result.get("parents"))
    merged = [_mapping(parents.get("base")), *(_mapping(each) for each in parents.get("adapters") or ())]
    ids = [*([run] if run is not None else []), *(each["task_id"] for each in merged if each.get("task_id"))]
    kind = "adapter" if adapter else "gguf" if _is_gguf(source) else "model"
    return Lineage(
        title=spec.push.to.rstrip("/").rpartition("/")[2],
        kind=kind,
        base=_base(result, adapter),
        artifact=spec.start.filename or source.name,
        digest=digest,
        method=_method(adapter),
        runs=dict.fromkeys(ids, "published run") | dict.fromkeys(ids[1:], "merged into it"),
        figures=[] if run is None else figures_of(run, result),
    )


def _is_gguf(source: Path) -> bool:
    return source.suffix == ".gguf" or (source.is_dir() and next(source.glob("*.gguf"), None) is not None)


def _base(result: Mapping[str, Any], adapter: Mapping[str, Any]) -> str | None:
    base = result.get("model_name") or adapter.get("base_model_name_or_path")
    # A path tells nothing outside of the machine that it is on.
    return base if isinstance(base, str) and base and not is_written_as_path(base) else None


def _method(adapter: Mapping[str, Any]) -> str | None:
    rank, alpha = adapter.get("r"), adapter.get("lora_alpha")
    if adapter.get("peft_type") != "LORA" or not isinstance(rank, int):
        return None
    name = "DoRA" if adapter.get("use_dora") else "LoRA"
    return f"{name}, rank {rank}" + (f", alpha {alpha:g}" if isinstance(alpha, int | float) else "")


def _result(path: Path) -> Mapping[str, Any]:
    """Return the result of a task; the server adds an envelope to the file that the task wrote."""
    found = _json(path)
    return _mapping(found["result"]) if "result" in found else found


def _json(path: Path) -> Mapping[str, Any]:
    """Return a JSON object; an empty one if the file is missing or is something else."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            return {}
        return _mapping(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
