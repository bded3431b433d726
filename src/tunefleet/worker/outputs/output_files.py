"""Uploads the outputs of a job to the server: folders, archives, an exported file; and adds them to the result."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from tunefleet.artifacts import Packing, hash_file, pack
from tunefleet.executors.base import Output, ResultError
from tunefleet.fsutil import write_synced
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_guide import (
    ALWAYS_REQUIRED,
    ARCHIVE_KIND,
    ENVELOPE_NAME,
    FILE_KIND,
    MANIFEST_NAME,
    RESULT_NAMES,
    ManifestEntry,
    ResultEnvelope,
    TaskManifest,
)
from tunefleet.schemas.worker_link import Offer
from tunefleet.spec.options.output import OutputSpec
from tunefleet.trainer_control.files import make_private
from tunefleet.worker.outputs.destinations import is_private

logger = logging.getLogger(__name__)
EXPORT: Final = "jsonl_export"
_TRAINED: Final = frozenset({"adapter", "model"})
# Left by every task, or delivered separately.
_ALWAYS: Final = frozenset({*RESULT_NAMES, "logs", MANIFEST_NAME, "checkpoints", "artifacts/checkpoints"})
# Other users read the results of a shared folder.
_READABLE: Final = 0o644
# Uploads a file or folder: name, kind, path. Retries, and returns once the server has it.
Push = Callable[[str, str, Path], None]
# Returns links to the task's files on the server, by name.
Links = Callable[[], Mapping[str, str]]
_LOG: Final = "train.log"
_SHOWN: Final = ("final_lora", "final_model", "checkpoints", *RESULT_NAMES)
_ARCHIVES: Final = "*.tar.gz"


class Outputs:
    """The outputs of one attempt's job."""

    def __init__(self, offer: Offer, folder: JobFolder, packing: Packing) -> None:
        self._offer = offer
        self._folder = folder
        self._packing = packing
        self._kept: list[Path] = []
        self.wanted = OutputSpec.model_validate(offer.spec.get("output") or {})

    def deliver(self, outputs: Sequence[Output], result: Mapping[str, Any], push: Push, links: Links) -> dict[str, Any]:
        """Upload everything, and return the result with the uploaded files added.

        Raises:
            ResultError: If the result names a file that does not exist.
            MachineError: If there is no disk space for an archive.
        """
        made = dict(result)
        archives: dict[str, Path] = {}
        self._kept = []
        for output in outputs:
            push(output.name, output.kind, output.path)
            if output.kind in _TRAINED and output.path.is_dir() and self.wanted.wants_archive(output.name):
                archives[output.name] = self._archive(output.path)
                push(archives[output.name].name, ARCHIVE_KIND, archives[output.name])
        exported = self._export(made, push)
        missing = self._keep([*outputs, *archives.values()], exported, push)
        if missing:
            made["warnings"] = [*made.get("warnings", ()), *missing]
        listed = _listed(made, outputs)
        found = links() if archives or exported is not None or listed else {}
        for about, name in listed:
            about["url"] = found.get(name)
        for output in outputs:
            if output.kind in _TRAINED:
                made |= _archive_keys(output, archives.get(output.name), found)
        if exported is not None:
            made[EXPORT] = self._export_keys(made[EXPORT], exported, found.get(exported.name))
        return made

    def envelope(self, result: Mapping[str, Any], worker_id: str) -> ResultEnvelope:
        """Return the result with metadata of its task."""
        offer = self._offer
        about = {"attempt": offer.attempt, "name": offer.name, "kind": offer.kind, "workflow_id": offer.workflow_id}
        return ResultEnvelope(
            task_id=offer.task_id,
            result=dict(result),
            worker_id=worker_id,
            metadata=about,
            received_at=datetime.now(UTC),
        )

    def write_down(self, envelope: ResultEnvelope) -> None:
        """Write the result, its envelope and the manifest into the job folder."""
        root = self._folder.root
        make_private(root)
        write_synced(self._folder.responses_json, json.dumps(envelope.result, indent=1), mode=_READABLE)
        write_synced(root / ENVELOPE_NAME, envelope.model_dump_json(indent=1), mode=_READABLE)
        manifest = describe_folder(self._offer.task_id, root, self.wanted.artifacts)
        write_synced(root / MANIFEST_NAME, manifest.model_dump_json(indent=1), mode=_READABLE)

    def files(self, outputs: Iterable[Output], result: Mapping[str, Any]) -> list[Path]:
        """Return the delivered single files: archives, the exported file, and single outputs."""
        found = [output.path for output in outputs if output.path.is_file()]
        found += [path for output in outputs if (path := archive_of(output.path)).is_file()]
        exported = result.get(EXPORT)
        if isinstance(exported, dict) and isinstance(exported.get("worker_path"), str):
            found.append(Path(exported["worker_path"]))
        found += [path for path in self._kept if path.is_file()]
        return list(dict.fromkeys(found))

    def clean_up(self, outputs: Iterable[Output]) -> None:
        """Delete delivered files: trained folders, archives, checkpoints."""
        gone = [output.path for output in outputs if output.kind in _TRAINED]
        # Resolved, since the folder of a `command` task is a link to where the command saves.
        for path in [*gone, self._folder.checkpoints_dir.resolve()]:
            shutil.rmtree(path, ignore_errors=True)
        for path in gone:
            archive_of(path).unlink(missing_ok=True)
        logger.info("Deleted the delivered outputs of task %s.", self._offer.task_id)

    def _archive(self, folder: Path) -> Path:
        archive = archive_of(folder)
        # A retry does not pack again unless the folder has changed since.
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
        if not archive.exists() or archive.stat().st_mtime < newest:
            pack(folder, archive, self._packing)
        return archive

    def _keep(self, brought: Sequence[Output | Path], exported: Path | None, push: Push) -> list[str]:
        """Upload further files of `output.artifacts`; returns a warning for each that is missing."""
        names = {each.name for each in brought} | ({exported.name} if exported is not None else set())
        root, warnings = self._folder.root.resolve(), []
        for name in self.wanted.artifacts:
            if name in _ALWAYS or name in names or (exported is not None and exported == root / name):
                continue
            path = root / name
            if not _is_there(path, root):
                warnings.append(f"output.artifacts lists {name!r}, which the run did not create.")
            elif path.name in names or path.name in _ALWAYS:
                warnings.append(
                    f"output.artifacts lists {name!r}, which is not delivered: {path.name} is the name of another file."
                )
            else:
                names.add(path.name)
                self._bring(path, push)
        return warnings

    def _bring(self, path: Path, push: Push) -> None:
        push(path.name, FILE_KIND, path)
        if path.is_dir() and self.wanted.destination.type != "local":
            path = self._archive(path)
            push(path.name, ARCHIVE_KIND, path)
        self._kept.append(path)

    def _export(self, result: Mapping[str, Any], push: Push) -> Path | None:
        export = result.get(EXPORT)
        if export is None:
            return None
        if not isinstance(export, dict) or not isinstance(export.get("path"), str):
            raise ResultError(f"The result's {EXPORT} has no path.")
        root = self._folder.root.resolve()
        # On a retry `path` may be a URL already; then `worker_path` has the local path.
        path = (root / str(export.get("worker_path") or export["path"])).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise ResultError(f"The result's {EXPORT} names {export['path']!r}, which is not a file of the run.")
        push(path.name, FILE_KIND, path)
        return path

    def _export_keys(self, export: Mapping[str, Any], path: Path, link: str | None) -> dict[str, Any]:
        reachable = link if self.wanted.destination.type == "http" else None
        return {
            **export,
            # A URL if possible, so that specs that reference `path` also work on another worker.
            "path": reachable or str(path),
            "worker_path": str(path),
            "relative_path": path.relative_to(self._folder.root.resolve()).as_posix(),
            "artifact_name": path.name,
            "uploaded": True,
            "url": link,
            "download_url": link,
        }


def _listed(result: dict[str, Any], outputs: Sequence[Output]) -> list[tuple[dict[str, Any], str]]:
    """Return the entries of single files under `files` or `outputs` of a result, with their names."""
    single = {output.name for output in outputs if output.path.is_file()}
    found: list[tuple[dict[str, Any], str]] = []
    files, named = result.get("files"), result.get("outputs")
    if isinstance(files, list):
        result["files"] = files = [dict(each) if isinstance(each, Mapping) else each for each in files]
        found += [(each, each["name"]) for each in files if isinstance(each, dict) and each.get("name") in single]
    if isinstance(named, Mapping):
        result["outputs"] = own = {
            name: dict(each) if isinstance(each, Mapping) else each for name, each in named.items()
        }
        found += [(each, name) for name, each in own.items() if isinstance(each, dict) and name in single]
    return found


def _is_there(path: Path, root: Path) -> bool:
    """Whether a file or folder exists and may be delivered: not outside of the folder, and not internal."""
    try:
        within = path.resolve().is_relative_to(root) and not is_private(path.relative_to(root).parts[0])
        return within and path.exists()
    except OSError:
        return False  # such as a name that is too long for the file system


def archive_of(folder: Path) -> Path:
    """Return the path of a folder's archive."""
    return folder.with_name(f"{folder.name}.tar.gz")


def _archive_keys(output: Output, archive: Path | None, links: Mapping[str, str]) -> dict[str, Any]:
    name = output.name
    return {
        f"{name}_path": str(output.path),
        f"{name}_archive": archive.name if archive else None,
        f"{name}_archive_path": str(archive) if archive else None,
        f"{name}_archive_url": links.get(archive.name) if archive else None,
        f"{name}_archive_bytes": archive.stat().st_size if archive else None,
        f"{name}_archive_uploaded": archive is not None,
    }


def describe_folder(task_id: str, root: Path, required: Iterable[str]) -> TaskManifest:
    """Return the manifest of a job folder; reads single files to compute their digests."""
    wanted = dict.fromkeys([*ALWAYS_REQUIRED, *required])
    existing = [name for name in _SHOWN if (root / name).exists()]
    existing += [path.name for path in sorted(root.glob(_ARCHIVES))]
    names = sorted({*wanted, *existing} - {MANIFEST_NAME})
    entries = tuple(_entry(root, name, required=name in wanted) for name in names)
    return TaskManifest(task_id=task_id, generated_at=datetime.now(UTC), entries=entries)


def _entry(root: Path, name: str, *, required: bool) -> ManifestEntry:
    # `logs` is the protocol's name for the log, which is a single file here.
    path = root / (_LOG if name == "logs" and not (root / name).exists() else name)
    relative = path.relative_to(root).as_posix()
    if not path.exists():
        return ManifestEntry(name=name, path=relative, type=_type(name, path), required=required, status="missing")
    status = path.stat()
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return ManifestEntry(
        name=name,
        path=relative,
        type=_type(name, path),
        required=required,
        status="present",
        updated_at=datetime.fromtimestamp(status.st_mtime, UTC),
        size=sum(file.stat().st_size for file in files),
        sha256=hash_file(path)[0] if path.is_file() else None,
        file_count=len(files) if path.is_dir() else None,
    )


def _type(name: str, path: Path) -> Literal["result", "logs", "artifact", "directory"]:
    if name in RESULT_NAMES:
        return "result"
    if name == "logs":
        return "logs"
    return "directory" if path.is_dir() or "." not in name else "artifact"
