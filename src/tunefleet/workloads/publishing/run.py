"""The program of a push task: check of the target → files and their digest → model card → upload.

May be killed at any time and relaunched in the same folder: files that an earlier launch uploaded are overwritten.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import SecretStr

from tunefleet import settings
from tunefleet.artifacts import LocalFile, manifest_digest, scan, scan_size
from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import InputError
from tunefleet.fsutil import Progress, write_file, write_folder
from tunefleet.integrations.publishing.card import CARD, write_card
from tunefleet.integrations.publishing.targets import PublishOptions, target
from tunefleet.spec.options.publish_target import hub_repository
from tunefleet.spec.tasks.push_task import PushOptions, PushTaskSpec
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.workloads.common import job_secrets
from tunefleet.workloads.common.job import OpenedJob, open_task
from tunefleet.workloads.publishing.lineage import lineage_of

# Key of a job's inputs for files that a worker fetched.
FETCHED: Final = "checkpoint.load"
_STAGED: Final = "published"
# Written once the target was found to be empty: files there are then those of this task.
CHECKED: Final = ".push.json"


def run(folder: Path) -> None:
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
    card_written = write_card(staged, lineage_of(task.spec, task.job, source, digest))

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
