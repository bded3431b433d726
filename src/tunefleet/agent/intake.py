"""Turns a request into a job record: translates the config, resolves names, and validates everything."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tunefleet.agent.jobs.job import AgentRecord
from tunefleet.agent.translate import Defaults, translate
from tunefleet.errors import Fault, ForbiddenError, InputError, SpecError
from tunefleet.schemas.training_protocol.training import PolledJob, TrainingJobRequest
from tunefleet.settings import AgentSettings
from tunefleet.spec import BUILTIN_PREFIX, load_task_spec
from tunefleet.trainer_control.control.discovery import safe_job_id

_CHECKPOINT = re.compile(r"checkpoint-\d+")
_DATA_SUFFIXES: Final = frozenset({".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet"})
_SPLITS: Final = ("train", "validation", "test", "valid", "val", "eval", "dev")
_FETCHED: Final = frozenset({"http", "https"})
_REMOTE: Final[dict[str, tuple[str, str]]] = {
    "s3": ("s3fs", "Copy the file to TUNEFLEET_DATASETS_DIR, or use a presigned https URL."),
    "gs": ("gcsfs", "Copy the file to TUNEFLEET_DATASETS_DIR, or use a signed https URL."),
}


def from_request(request: TrainingJobRequest, settings: AgentSettings, defaults: Defaults) -> AgentRecord:
    """Build the record of a job that was posted to the agent."""
    config = request.config.model_dump(mode="json", exclude_unset=True)
    return _record(
        request.execution_id,
        request.name,
        config,
        request.dataset_path,
        settings,
        defaults,
        user_id=request.user_id,
        token=request.job_token or None,
    )


def from_poll(job: PolledJob, token: str, settings: AgentSettings, defaults: Defaults) -> AgentRecord:
    """Build the record of a claimed job, from its spec if the backend sends one. Raises as `from_request` does."""
    name = job.name or job.model_name
    if job.spec is None:
        config = {**job.config, "model": {"name": job.model_name, **_block(job.config, "model")}}
        return _record(job.id, name, config, job.dataset_path, settings, defaults, token=token, polled=True)
    spec = load_task_spec(job.spec)
    return AgentRecord(
        job_id=_checked_id(job.id),
        name=name,
        kind=job.kind or spec.task_type,
        spec=job.spec,
        digests=job.inputs,
        resume=job.resume,
        attempt=job.attempt or 1,
        order=time.time(),
        backend=settings.backend,
        token=token,
        polled=True,
        delivers=True,
        traceparent=job.traceparent,
    )


def _record(
    job_id: str,
    name: str,
    config: dict[str, Any],
    dataset_path: str,
    settings: AgentSettings,
    defaults: Defaults,
    **more: Any,
) -> AgentRecord:
    rows = resolve_dataset(dataset_path, settings.datasets_dir)
    model_name = _block(config, "model").get("name")
    model = None
    if isinstance(model_name, str) and model_name:
        model = resolve_model(model_name, settings.models_dir)
    translation = translate(config, rows.source, defaults, model=model, splits=rows.splits)
    return AgentRecord(
        job_id=_checked_id(job_id),
        name=name or job_id,
        kind=translation.kind,
        spec=translation.spec,
        inputs=rows.inputs,
        addresses=rows.addresses,
        order=time.time(),
        warnings=translation.warnings,
        checkpoint=_checkpoint(translation.checkpoint, settings.checkpoints_dir),
        backend=settings.backend,
        **more,
    )


def _block(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    block = config.get(name) or {}
    if not isinstance(block, Mapping):
        raise SpecError([Fault(f"config.{name}", f"must be an object, not {block!r:.40}")], filename="the config")
    return block


def _checked_id(job_id: str) -> str:
    try:
        return safe_job_id(job_id)
    except ValueError as error:
        raise SpecError([Fault("execution_id", str(error))], filename="the request") from None


def _checkpoint(path: str | None, checkpoints_dir: Path) -> str | None:
    if path is None:
        return None
    field = "config.training.checkpoint_resume"
    try:
        folder = _resolve_local(path, checkpoints_dir, "TUNEFLEET_CHECKPOINTS_DIR")
    except ForbiddenError as error:
        raise SpecError([Fault(field, str(error))], filename="the config") from None
    # The manifest is written last: a folder without one is incomplete.
    if folder is None or not _CHECKPOINT.fullmatch(folder.name) or not (folder / "manifest.json").is_file():
        hint = "use a checkpoint-<step> folder of a job of this agent"
        raise SpecError([Fault(field, f"{path} is not a complete checkpoint", hint=hint)], filename="the config")
    return str(folder)


@dataclass(frozen=True, slots=True)
class Dataset:
    """The resolved dataset of a job."""

    source: dict[str, str]
    inputs: dict[str, str]
    addresses: dict[str, str]
    splits: tuple[str, ...] = ()


def resolve_dataset(path: str, datasets_dir: Path) -> Dataset:
    """Resolve a dataset.

    Raises:
        ForbiddenError: If it is outside of the folder.
        InputError: If it does not exist, or its URL scheme is not supported.
    """
    scheme = path.partition("://")[0].lower() if "://" in path else ""
    if path.startswith(BUILTIN_PREFIX):
        return Dataset({"path": path}, {}, {}, ("train", "test"))
    if scheme in _FETCHED:
        name = _name_of(path)
        return Dataset({"path": name}, {}, {"data.path": path})
    if scheme == "hf":
        return _hub_dataset(path)
    if scheme:
        package, hint = _REMOTE.get(scheme, ("", "Use a path, or an http, https or hf URL."))
        needs = f" (needs the package {package})" if package else ""
        raise InputError(f"dataset_path: {scheme}:// URLs are not supported by this agent{needs}.", hint=hint)
    found = _resolve_local(path, datasets_dir, "TUNEFLEET_DATASETS_DIR")
    if found is None:
        if _is_hub_id(path):
            return Dataset({"dataset_name": path}, {}, {})
        raise InputError(
            f"dataset_path: {path} not found.", hint=f"Put it into TUNEFLEET_DATASETS_DIR ({datasets_dir})."
        )
    return Dataset({"path": found.name}, {"data.path": str(found)}, {}, _splits_of(found))


def resolve_model(name: str, models_dir: Path) -> str:
    """Resolve a model: a folder of `TUNEFLEET_MODELS_DIR`, otherwise the name itself, which is a Hub id then.

    Raises:
        ForbiddenError: If it is a folder outside of `TUNEFLEET_MODELS_DIR`.
        InputError: If the path does not exist.
    """
    if name.startswith(BUILTIN_PREFIX):
        return name
    found = _resolve_local(name, models_dir, "TUNEFLEET_MODELS_DIR")
    if found is not None:
        return str(found)
    if not _is_hub_id(name):
        raise InputError(
            f"config.model.name: {name} not found.", hint=f"Put it into TUNEFLEET_MODELS_DIR ({models_dir})."
        )
    return name


def _resolve_local(name: str, folder: Path, setting: str) -> Path | None:
    """Resolve a file or folder by its name in a folder, or by a path into it; None if it does not exist."""
    _check_text(name, setting)
    root = folder.expanduser().resolve()
    given = Path(name).expanduser() if name.startswith("~/") else Path(name)
    outside = ForbiddenError(
        f"{name} is outside of {setting}, the only folder that this agent may read.",
        hint=f"Move it there, or start the agent with another {setting}.",
    )
    # The protocol also allows paths relative to the agent's working directory.
    candidates = [given] if given.is_absolute() else [root / given, Path.cwd() / given]
    for candidate in candidates:
        try:
            path = candidate.resolve(strict=True)
        except OSError:
            continue
        if path.is_relative_to(root) and path != root:
            return path
        if given.is_absolute() or ".." in given.parts or candidate.is_relative_to(root):
            raise outside
    if given.is_absolute() and not given.resolve().is_relative_to(root):
        # The same error whether it exists or not, so that a caller cannot probe the disk.
        raise outside
    return None


def _check_text(name: str, setting: str) -> None:
    """Reject text that cannot be a file name: a null byte or a lone surrogate."""
    if "\0" in name or any("\ud800" <= sign <= "\udfff" for sign in name):
        raise InputError(f"{name!r:.80} is not a valid name in {setting}.")


def _splits_of(path: Path) -> tuple[str, ...]:
    """Return the splits of a folder saved by `datasets`, or with one file per split; empty for a single set."""
    if not path.is_dir():
        return ()
    saved = path / "dataset_dict.json"
    if saved.is_file():
        return tuple(json.loads(saved.read_text(encoding="utf-8")).get("splits", ()))
    stems = {file.stem for file in path.iterdir() if file.suffix.lower() in _DATA_SUFFIXES}
    return tuple(name for name in _SPLITS if any(stem == name or stem.startswith(f"{name}-") for stem in stems))


def _hub_dataset(address: str) -> Dataset:
    """Resolve `hf://datasets/OWNER/NAME` or `hf://OWNER/NAME`, with an optional `@revision`."""
    path = address.removeprefix("hf://").removeprefix("datasets/").strip("/")
    name, _, revision = path.partition("@")
    if len(name.split("/")) > 2:
        raise InputError(
            f"dataset_path: {address} points to a file inside a dataset.",
            hint="Use the dataset: hf://datasets/OWNER/NAME.",
        )
    source = {"dataset_name": name}
    return Dataset({**source, "revision": revision} if revision else source, {}, {})


def _name_of(address: str) -> str:
    try:
        name = Path(urlsplit(address).path).name
    except ValueError as error:
        raise InputError(f"dataset_path: {address!r} is not a valid URL: {error}.") from None
    if Path(name).suffix.lower() not in _DATA_SUFFIXES:
        known = ", ".join(sorted(_DATA_SUFFIXES))
        raise InputError(f"dataset_path: {address} does not have a data file extension.", hint=f"Supported: {known}.")
    return name


def _is_hub_id(name: str) -> bool:
    parts = name.split("/")
    return (
        len(parts) <= 2
        and all(parts)
        and not name.startswith((".", "~", "/"))
        and Path(name).suffix not in _DATA_SUFFIXES
    )
