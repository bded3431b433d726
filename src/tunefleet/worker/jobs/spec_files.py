"""Fetches inputs that a spec references and that were not uploaded: files of other tasks, and URLs.

<job folder>/imported_checkpoint/            fetched initial weights
<job folder>/imported_checkpoint/extracted/  the same, unpacked, if it is an archive
<job folder>/imported_checkpoint/<pointer>/  the same for each adapter, by its pointer into the spec
<job folder>/inputs/<pointer>/               fetched rows
<job folder>/inputs/upstream/                results of other stages
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from tunefleet.artifacts import hash_file, is_packed, unpack
from tunefleet.client.external.download import Address, Downloader
from tunefleet.errors import ForbiddenError, InputError, NotFoundError, TunefleetError, UnreachableError
from tunefleet.runtime.secrets import Secrets
from tunefleet.schemas.job_folder import JobFolder
from tunefleet.schemas.worker_guide import ARCHIVE_KIND, ResultFile
from tunefleet.schemas.worker_link import Offer
from tunefleet.spec import BaseTaskSpec, load_task_spec
from tunefleet.spec.base import is_url
from tunefleet.spec.documents.paths import Fetch, fetches
from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec
from tunefleet.worker.context import WorkerContext
from tunefleet.worker.interfaces import Delivery
from tunefleet.worker.jobs.fetch_progress import InputDownload
from tunefleet.worker.mailbox import Mailbox

logger = logging.getLogger(__name__)

# Key of a job's inputs for weights from a task or a URL.
WEIGHTS: Final = "checkpoint.load"
_MODELS: Final = ("final_model", "checkpoints/final_model")
_ADAPTERS: Final = ("final_lora", "checkpoints/final_lora")
_SINGLE: Final = ("final_model.bin", "final_model.safetensors", "final_model.pt")
_OURS: Final = re.compile(r"/api/v1/results/(?P<task>[^/]+)/files/(?P<name>.+)$")
# How long a third-party URL is retried; then the attempt ends, and the task's own retries apply.
_PATIENCE_S: Final = 300.0
_EXTRACTED: Final = "extracted"
# Prefixes of pointers to rows and files; all others point to weights.
_ROWS: Final = ("data.", "evaluations.", "files.", "sources.")
_FORBIDDEN: Final = (NotFoundError, ForbiddenError)
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9._ -]")


class ReferenceFetcher:
    """Fetches the referenced files of one attempt."""

    def __init__(
        self, worker_context: WorkerContext, offer: Offer, mailbox: Mailbox, delivery: Delivery, fetching: InputDownload
    ) -> None:
        self._transfers = worker_context.transfers
        self._secrets: Secrets = worker_context.secrets
        self._other = worker_context.folder
        self._offer = offer
        self._mailbox = mailbox
        self._delivery = delivery
        self._fetching = fetching
        self._folder: JobFolder = worker_context.folder(offer.task_id)
        self._imported = self._folder.root / "imported_checkpoint"

    def bring(self, given: Mapping[str, str]) -> dict[str, str]:
        """Fetch everything that the spec references.

        Args:
            given: Uploaded and local files: pointer into the spec → local path.
        """
        if not _names_places(self._offer.spec):
            return {}
        spec = load_task_spec(self._offer.spec)
        start: CheckpointLoadSpec | None = getattr(spec, "start", None)
        here = self._weights_here(spec, start, given)
        stages = StageResultFetcher(
            self._folder.root / "inputs" / "upstream", self._other, self._delivery, self._fetching
        )
        found = here | stages.bring(getattr(spec, "upstream", None) or {})
        for wanted in fetches(spec):
            if wanted.pointer == WEIGHTS and here:
                continue
            found |= self._fetched(wanted, start, given, found)
        return found

    def _weights_here(
        self, spec: BaseTaskSpec, start: CheckpointLoadSpec | None, given: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the weights that were uploaded or exist on this worker, unpacked."""
        pointer = getattr(spec, "start_pointer", None)
        if start is None or start.place is None or pointer is None or is_url(start.place):
            return {}
        place = given.get(pointer)
        return (
            {} if place is None else {pointer: str(self._unpacked(Path(place), self._imported, start.archive_format))}
        )

    def _fetched(
        self,
        wanted: Fetch,
        start: CheckpointLoadSpec | None,
        given: Mapping[str, str],
        found: Mapping[str, str],
    ) -> dict[str, str]:
        rows, begins = wanted.pointer.startswith(_ROWS), wanted.pointer == WEIGHTS
        folder = self._folder.root / "inputs" if rows else self._imported
        dest = folder if begins else folder / wanted.pointer  # files of two tasks may have the same name
        archive_format = start.archive_format if begins and start is not None else "auto"
        block = wanted.pointer.rpartition(".")[0]
        siblings = {name for name in (*given, *found) if block.endswith(".jsonl") and name.startswith(f"{block}.")}
        if rows and any(name in found for name in siblings):
            return {}
        try:
            path = self._fetch(wanted, dest)
        except TunefleetError as error:
            if rows and siblings:
                logger.warning("spec.%s skipped, since an alternative source is set: %s", wanted.pointer, error)
                return {}
            if wanted.optional:
                logger.info("%s of %s is not available: %s", wanted.filename, wanted.task_id, error)
                return {}
            raise _as_input(error, wanted.pointer) from error
        return {wanted.pointer: str(path if rows else self._unpacked(path, dest, archive_format))}

    def _fetch(self, wanted: Fetch, dest: Path) -> Path:
        if wanted.url is not None:
            return self._from_address(str(self._secrets.fill(wanted.url)), wanted, dest)
        task_id = wanted.task_id or ""
        if wanted.base_url is not None and wanted.filename is not None:
            base = str(self._secrets.fill(wanted.base_url)).rstrip("/").removesuffix("/api/v1")
            return self._from_address(f"{base}/api/v1/results/{task_id}/files/{wanted.filename}", wanted, dest)
        here = self._in_folder_of(task_id, wanted.filename)
        return here if here is not None else self._from_task(task_id, wanted.filename, dest)

    def _from_address(self, url: str, wanted: Fetch, dest: Path) -> Path:
        ours = self._our_file(url)
        if ours is not None:
            task_id, file = ours
            return self._take(task_id, file, dest / Path(file.name).name)
        headers = dict(self._secrets.fill(dict(wanted.headers)))
        address = Address(url, headers, wanted.timeout_s, wanted.filename)
        downloads = Downloader(
            dest, allowed=self._transfers.url_allow, throttle=self._transfers.throttle, on_progress=self._fetching.at
        )
        self._fetching.begin(address.name)
        return Retrying(
            retry=retry_if_exception_type(UnreachableError),
            wait=wait_exponential(multiplier=1.0, max=30.0),
            stop=stop_after_delay(min(_PATIENCE_S, self._transfers.patience_s)),
            sleep=lambda seconds: self._mailbox.sleep(seconds, unwanted=self._fetching.stop.is_set),
            before_sleep=lambda state: self._fetching.wait(
                address.name,
                (state.outcome and state.outcome.exception()) or UnreachableError("The host does not respond."),
                state.seconds_since_start or 0.0,
            ),
            reraise=True,
        )(downloads.fetch, address, self._fetching.stop)

    def _our_file(self, url: str) -> tuple[str, ResultFile] | None:
        """Return the file of this server that a URL points to."""
        # Matched by path, not by host: a server has several names, and its URLs in a spec may use any of them.
        named = _OURS.search(unquote(urlsplit(url).path))
        if named is None:
            return None
        try:
            files = self._files_of(named["task"])
        except _FORBIDDEN:
            return None  # a task of another server
        return next(((named["task"], file) for file in files if file.name == named["name"]), None)

    def _in_folder_of(self, task_id: str, filename: str | None) -> Path | None:
        """Return a file or model of a task on this worker; never the job folder itself, which may hold anything."""
        if Path(task_id).name != task_id or task_id.startswith("."):
            raise InputError(f"{task_id!r} is not a task ID.")
        names = (filename,) if filename is not None else self._probes
        try:
            found = (self._transfers.readable(f"{task_id}/{name}", self._offer.project, "taskId") for name in names)
            return next((path for path in found if path is not None), None)
        except InputError:
            return None  # not of this project, or not of a task: the server decides what may be read

    @property
    def _probes(self) -> tuple[str, ...]:
        first, second = (_ADAPTERS, _MODELS) if self._offer.kind == "lora_sft" else (_MODELS, _ADAPTERS)
        return (*first, *second, *_SINGLE)

    def _from_task(self, task_id: str, filename: str | None, dest: Path) -> Path:
        files = self._files_of(task_id)
        names = (filename,) if filename is not None else self._probes
        for name in names:
            if not name.endswith((".bin", ".safetensors", ".pt")):
                folder = [file for file in files if file.name.startswith(f"{name}/")]
                if folder:
                    return self._folder_of(task_id, name, folder, dest)
            single = next((file for file in files if file.name in {name, f"{name}.tar.gz"}), None)
            if single is not None:
                return self._take(task_id, single, dest / Path(single.name).name)
        what = filename or "model or adapter"
        raise InputError(f"Run {task_id} has no {what}.", hint="List its artifacts with `tunefleet artifacts ls`.")

    def _folder_of(self, task_id: str, name: str, files: Sequence[ResultFile], dest: Path) -> Path:
        root = dest / name
        for file in files:
            self._take(task_id, file, root / file.name.removeprefix(f"{name}/"))
        return root

    def _files_of(self, task_id: str) -> Sequence[ResultFile]:
        return self._fetching.get(
            f"the list of the files of {task_id}", lambda _: self._delivery.result_files(task_id), fatal=_FORBIDDEN
        )

    def _take(self, task_id: str, file: ResultFile, target: Path) -> Path:
        self._fetching.get(
            f"{file.name} of {task_id}",
            lambda on_progress: self._delivery.fetch_result_file(task_id, file, target, on_progress=on_progress),
        )
        return target

    def _unpacked(self, path: Path, dest: Path, archive_format: str) -> Path:
        """Return the folder with an archive's contents; any other path is returned unchanged."""
        if not path.is_file() or archive_format == "none" or (archive_format == "auto" and not is_packed(path)):
            return path
        target = dest / _EXTRACTED
        if not target.is_dir():
            unpack(path, target)
        return target


def _names_places(spec: Mapping[str, Any]) -> bool:
    """Whether a spec may reference something that is neither uploaded nor on the Hub."""
    # A cheap check first: most specs reference nothing of the kind, and need not be parsed for it.
    data, training = spec.get("data"), spec.get("training")
    start = (spec.get("checkpoint") or {}).get("load") or (training or {}).get("resume_from_path")
    blocks = [data, *_blocks(spec.get("sources")), *(each.get("data") for each in _blocks(spec.get("evaluations")))]
    rows = any("://" in text for block in blocks if isinstance(block, Mapping) for text in _texts(block))
    adapters = (spec.get("model") or {}).get("adapters")
    database = (spec.get("qdrant") or {}).get("taskId")
    judge = (spec.get("reward_model") or {}).get("taskId")
    return bool(start or rows or adapters or database or judge or spec.get("files") or spec.get("upstream"))


def _blocks(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _texts(data: Mapping[str, Any]) -> list[str]:
    values = [data.get("path"), data.get("url"), data.get("jsonl_path"), (data.get("eval") or {}).get("path")]
    jsonl = data.get("jsonl") or {}
    values += [jsonl.get(name) for name in ("url", "download_url", "path")]
    return [value for value in values if isinstance(value, str)]


def _as_input(error: TunefleetError, pointer: str) -> TunefleetError:
    """Map a fetch error: a missing or forbidden file is an input error; a network error stays one."""
    if isinstance(error, ForbiddenError | NotFoundError):
        return InputError(f"spec.{pointer}: {error.message}", hint=error.hint)
    return error


class StageResultFetcher:
    """Fetches the results of other stages."""

    def __init__(
        self, root: Path, other: Callable[[str], JobFolder], delivery: Delivery, fetching: InputDownload
    ) -> None:
        self._root = root
        self._other = other
        self._delivery = delivery
        self._fetching = fetching

    def bring(self, stages: Mapping[str, str]) -> dict[str, str]:
        """Fetch the results and files of some stages."""
        return {f"upstream.{name}": str(self._one(name, task_id)) for name, task_id in stages.items()}

    def _one(self, name: str, task_id: str) -> Path:
        folder = self._root / (_UNUSUAL.sub("_", name).strip(". ") or task_id)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            files = self._fetching.get(
                f"the result of {name}", lambda _: self._delivery.result_files(task_id), fatal=_FORBIDDEN
            )
        except _FORBIDDEN as error:
            raise InputError(f"The result of {name} is not available: {error.message}", hint=error.hint) from error
        for file in files:
            if file.kind != ARCHIVE_KIND:  # its contents are listed as single files too
                self._file(task_id, file, folder / file.name)
        return folder

    def _file(self, task_id: str, file: ResultFile, target: Path) -> None:
        if not target.resolve().is_relative_to(self._root.resolve()):
            raise InputError(f"Run {task_id} has a file named {file.name!r}, which points outside of its folder.")
        if target.is_file() and hash_file(target)[0] == file.sha256:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        here = self._other(task_id).root / file.name
        if here.is_file() and here.stat().st_size == file.size_bytes and hash_file(here)[0] == file.sha256:
            shutil.copyfile(here, target)  # no link: user code may write into its inputs
            return
        self._fetching.get(
            f"{file.name} of {task_id}",
            lambda on_progress: self._delivery.fetch_result_file(task_id, file, target, on_progress=on_progress),
        )
