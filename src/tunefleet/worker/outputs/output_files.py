"""What a job has left, on its way to the server: folders, archives, an exported file; and the result that names them.

A repetition costs little: an archive that is newer than its folder is not made again, and a file that the server has
is not sent again.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tunefleet.artifacts import Packing, pack
from tunefleet.executors.base import Output, ResultError
from tunefleet.fsutil import write_synced
from tunefleet.schemas.compat.task_results import (
    ARCHIVE_KIND,
    ENVELOPE_NAME,
    FILE_KIND,
    MANIFEST_NAME,
    RESULT_NAMES,
    ResultEnvelope,
)
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_link import Offer
from tunefleet.spec.options.output import OutputSpec
from tunefleet.trainer_control.files import make_private
from tunefleet.worker.outputs.destinations import is_private
from tunefleet.worker.outputs.folder_manifest import describe

logger = logging.getLogger(__name__)

EXPORT: Final = "jsonl_export"
_TRAINED: Final = frozenset({"adapter", "model"})
_ALWAYS: Final = frozenset({*RESULT_NAMES, "logs", MANIFEST_NAME, "checkpoints", "artifacts/checkpoints"})
"""What every task leaves, or is delivered on its own way."""
# Others read the results of a shared folder.
_READABLE: Final = 0o644

# Brings a file or folder to the server: name, kind, path. Patient; returns when it is there.
Push = Callable[[str, str, Path], None]
# Asks the server for links to the task's files, by name.
Links = Callable[[], Mapping[str, str]]


class Outputs:
    """The outputs of one attempt's job."""

    def __init__(self, offer: Offer, folder: JobFolder, packing: Packing) -> None:
        self._offer = offer
        self._folder = folder
        self._packing = packing
        self._kept: list[Path] = []
        self.wanted = OutputSpec.model_validate(offer.spec.get("output") or {})

    def deliver(self, outputs: Sequence[Output], result: Mapping[str, Any], push: Push, links: Links) -> dict[str, Any]:
        """Bring everything to the server.

        Raises:
            ResultError: If the result names a file that is not there.
            MachineError: If there is no room for an archive.
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
        """Return the result with where it comes from."""
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
        manifest = describe(self._offer.task_id, root, self.wanted.artifacts)
        write_synced(root / MANIFEST_NAME, manifest.model_dump_json(indent=1), mode=_READABLE)

    def files(self, outputs: Iterable[Output], result: Mapping[str, Any]) -> list[Path]:
        """Return the single files among what was delivered: archives, the exported file, and single outputs."""
        found = [output.path for output in outputs if output.path.is_file()]
        found += [path for output in outputs if (path := archive_of(output.path)).is_file()]
        exported = result.get(EXPORT)
        if isinstance(exported, dict) and isinstance(exported.get("worker_path"), str):
            found.append(Path(exported["worker_path"]))
        found += [path for path in self._kept if path.is_file()]
        return list(dict.fromkeys(found))

    def clean_up(self, outputs: Iterable[Output]) -> None:
        """Delete what the server has: trained folders, archives, checkpoints."""
        gone = [output.path for output in outputs if output.kind in _TRAINED]
        # That of a command is a link to where it saves.
        for path in [*gone, self._folder.checkpoints_dir.resolve()]:
            shutil.rmtree(path, ignore_errors=True)
        for path in gone:
            archive_of(path).unlink(missing_ok=True)
        logger.info("Deleted what task %s had trained; the server has it.", self._offer.task_id)

    def _archive(self, folder: Path) -> Path:
        archive = archive_of(folder)
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
        if not archive.exists() or archive.stat().st_mtime < newest:
            pack(folder, archive, self._packing)
        return archive

    def _keep(self, brought: Sequence[Output | Path], exported: Path | None, push: Push) -> list[str]:
        """Bring what `output.artifacts` names beyond what the kind leaves; returns a sentence for each that is not."""
        names = {each.name for each in brought} | ({exported.name} if exported is not None else set())
        root, warnings = self._folder.root.resolve(), []
        for name in self.wanted.artifacts:
            if name in _ALWAYS or name in names or (exported is not None and exported == root / name):
                continue
            path = root / name
            if not _is_there(path, root):
                warnings.append(f"output.artifacts names {name!r}, which the task did not leave.")
            elif path.name in names or path.name in _ALWAYS:
                warnings.append(
                    f"output.artifacts names {name!r}, which is not delivered: {path.name} is another file."
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
            raise ResultError(f"The result's {EXPORT} names no path.")
        root = self._folder.root.resolve()
        # A repetition finds an address in `path`, and where the file lies beside it.
        path = (root / str(export.get("worker_path") or export["path"])).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            raise ResultError(f"The result's {EXPORT} names {export['path']!r}, which is no file in the task's folder.")
        push(path.name, FILE_KIND, path)
        return path

    def _export_keys(self, export: Mapping[str, Any], path: Path, link: str | None) -> dict[str, Any]:
        reachable = link if self.wanted.destination.type == "http" else None
        return {
            **export,
            # Documents that name `path` alone work on another worker, too.
            "path": reachable or str(path),
            "worker_path": str(path),
            "relative_path": path.relative_to(self._folder.root.resolve()).as_posix(),
            "artifact_name": path.name,
            "uploaded": True,
            "url": link,
            "download_url": link,
        }


def _listed(result: dict[str, Any], outputs: Sequence[Output]) -> list[tuple[dict[str, Any], str]]:
    """Return what a result says of single files under `files` or `outputs`, with their names."""
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
    """Whether a file or folder may be delivered: a link may lead out of the folder, and some files are the worker's."""
    try:
        within = path.resolve().is_relative_to(root) and not is_private(path.relative_to(root).parts[0])
        return within and path.exists()
    except OSError:
        return False  # such as a name that is too long for the disk


def archive_of(folder: Path) -> Path:
    """Return where a folder's archive lies, or would lie."""
    return folder.with_name(f"{folder.name}.tar.gz")


def _archive_keys(output: Output, archive: Path | None, links: Mapping[str, str]) -> dict[str, Any]:
    name, there = output.name, archive is not None
    return {
        f"{name}_path": str(output.path),
        f"{name}_archive": archive.name if archive else None,
        f"{name}_archive_path": str(archive) if archive else None,
        f"{name}_archive_url": links.get(archive.name) if archive else None,
        f"{name}_archive_bytes": archive.stat().st_size if archive else None,
        f"{name}_archive_uploaded": there,
    }
