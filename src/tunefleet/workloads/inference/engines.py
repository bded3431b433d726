"""From a spec to an engine and its model: never silently another engine than requested."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import MachineError, ModelError
from tunefleet.runtime import envs
from tunefleet.spec.base import is_hub_name
from tunefleet.spec.options.checkpoint_storage import CheckpointLoadSpec
from tunefleet.spec.options.served_model import AdapterSpec
from tunefleet.spec.tasks.item_tasks import AnsweringTaskSpec
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.common import base_model, containment, hub_files
from tunefleet.workloads.engine.client import connect
from tunefleet.workloads.engine.protocol import Engine, EngineAdapter, EngineModel

EngineName = Literal["transformers", "vllm"]
FETCHED: Final = "checkpoint.load"
"""Key of a job's inputs with the path of weights from a task or an address."""
# Name of the adapter from `checkpoint.load`.
CHECKPOINT: Final = "checkpoint"
_ADAPTER_FILE: Final = "adapter_config.json"
_MODEL_FILE: Final = "config.json"
_SINGLE: Final = {".safetensors": "model.safetensors", ".bin": "pytorch_model.bin", ".pt": "pytorch_model.bin"}
_WEIGHTS: Final = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json", "*.pt")


def choose(spec: AnsweringTaskSpec, gpus: Sequence[str]) -> EngineName:
    """Return the engine of a task: vLLM if requested, or with a GPU if vLLM is installed; else Transformers.

    Raises:
        MachineError: If vLLM is requested but cannot run here.
    """
    # vLLM is used on GPUs only.
    if spec.enforce_cpu:
        return "transformers"
    unavailable = _without_vllm()
    if spec.model.vllm is not None and unavailable is not None:
        raise MachineError(
            f"The spec has a model.vllm block, but vLLM cannot run here. {unavailable}",
            hint="Without that block the run uses Transformers.",
        )
    asked = spec.model.vllm is not None
    return "vllm" if asked or (gpus and unavailable is None and spec.model.transformers is None) else "transformers"


def _without_vllm() -> str | None:
    return None if find_spec("vllm") is not None else envs.reason("vllm")


@contextmanager
def opened(model: EngineModel, gpus: Sequence[str], journal: Journal) -> Iterator[Engine]:
    """Yield an engine with the model loaded.

    Raises:
        ModelError: If the model or an adapter cannot be loaded.
    """
    engine = connect(model, gpus=gpus, say=lambda text: journal.event("engine.said", text, "warning"))
    how = ("engine.warm", "was already loaded") if engine.was_loaded else ("engine.loaded", "is loaded")
    about = {"engine": engine.name, "pid": engine.pid}
    journal.event(how[0], f"{model.identifier} {how[1]} in {engine.name}.", data=about)
    try:
        yield engine
    finally:
        engine.close()


def engine_model(
    spec: AnsweringTaskSpec, inputs: Mapping[str, str], workspace: Path, engine: EngineName
) -> EngineModel:
    """Resolve everything that an engine loads for a task."""
    named = spec.model.source
    revision = named.revision or (spec.model.vllm.revision if spec.model.vllm is not None else None)
    source = base_model.locate_named(
        named, inputs, workspace, revision=revision, trust_remote_code=spec.model.trust_remote_code
    )
    on_hub = base_model.POINTER not in inputs and not Path(source.path).is_dir()
    hub_id = named.identifier if on_hub else None
    path, adapters = source.path, _adapters(spec, inputs, workspace, hub_id)
    if spec.start is not None:
        started = _started(spec.start, spec.start_pointer, inputs, workspace)
        if (started / _ADAPTER_FILE).is_file():
            containment.check_adapter(started)
            _check_base(started, hub_id, FETCHED)
            # If others are applied by name, this one is merged below all of them.
            under = any(not each.merge for each in adapters)
            adapters = (EngineAdapter(CHECKPOINT, str(started), merge=under), *adapters)
        else:
            path, revision = str(_whole_model(started, Path(path), workspace)), None
    return EngineModel(
        path=path,
        identifier=named.identifier,
        revision=revision,
        trust_remote_code=spec.model.trust_remote_code,
        adapters=adapters,
        options=_options(spec, engine),
        stamp=_stamp([path, *(each.path for each in adapters)], workspace.parent),
        engine=engine,
    )


def runtime_adapters(model: EngineModel) -> list[str]:
    """Return the names of the adapters that a request may use."""
    return [each.name for each in model.adapters if not each.merge]


def _options(spec: AnsweringTaskSpec, engine: EngineName) -> dict[str, Any]:
    block = spec.model.vllm if engine == "vllm" else spec.model.transformers
    given = {} if block is None else block.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {**given, "device_map": "cpu"} if spec.enforce_cpu else given


def _adapters(
    spec: AnsweringTaskSpec, inputs: Mapping[str, str], workspace: Path, hub_id: str | None
) -> tuple[EngineAdapter, ...]:
    found = []
    for index, each in enumerate(spec.model.adapters):
        pointer = f"model.adapters.{index}"
        folder = _adapter_folder(each, pointer, inputs, workspace)
        containment.check_adapter(folder)
        _check_base(folder, hub_id, pointer)
        name, merge = each.name or f"lora_{index}", each.apply == "merge"
        found.append(EngineAdapter(name, str(folder), merge=merge, scale=each.scale))
    return tuple(found)


def _adapter_folder(wanted: AdapterSpec, pointer: str, inputs: Mapping[str, str], workspace: Path) -> Path:
    named = wanted.path or wanted.task_id or wanted.url
    place = inputs.get(f"{pointer}.path") or inputs.get(pointer)
    if place is None and wanted.path is not None and is_hub_name(wanted.path):
        place = str(hub_files.fetched(wanted.path, wanted.revision))
    if place is None:
        raise ModelError(f"spec.{pointer}: the adapter {named} is not on this worker.")
    folder = only_folder(unpacked_path(Path(place), workspace))
    if not (folder / _ADAPTER_FILE).is_file():
        raise ModelError(
            f"spec.{pointer}: {named} has no {_ADAPTER_FILE}.",
            hint="Name the adapter folder of a training run; a complete model is loaded with checkpoint.load.",
        )
    return folder


def _started(load: CheckpointLoadSpec, pointer: str, inputs: Mapping[str, str], workspace: Path) -> Path:
    place = inputs.get(pointer) or inputs.get(FETCHED)
    named = load.place or load.task or load.url
    if place is None:
        raise ModelError(f"spec.checkpoint.load: the weights of {named} are not on this worker.")
    path = Path(place)
    found = path if load.archive_format == "none" else unpacked_path(path, workspace)
    found = found / load.subdir if load.subdir is not None else only_folder(found)
    is_complete = any((found / name).is_file() for name in (_ADAPTER_FILE, _MODEL_FILE))
    if not is_complete and not (found.is_file() and found.suffix in _SINGLE):
        raise ModelError(
            f"spec.checkpoint.load: {named} contains neither a model ({_MODEL_FILE}) nor an adapter ({_ADAPTER_FILE}).",
            hint="Name the output of a training run, and the folder in it with `subdir`.",
        )
    return found


def _whole_model(started: Path, base: Path, workspace: Path) -> Path:
    """Return a model's folder; a single weight file replaces the weights of the base model."""
    if started.is_dir():
        containment.check_model(started)
        return started
    # A single file of weights needs the config and tokenizer of a model folder.
    if not base.is_dir():
        raise ModelError(
            f"spec.checkpoint.load: {started.name} contains only weights, and their model is not a local folder.",
            hint="Name the output folder of the training run, or a local folder as the model.",
        )
    folder = workspace / "checkpoint-model"
    folder.mkdir(parents=True, exist_ok=True)
    own = {entry for pattern in _WEIGHTS for entry in base.glob(pattern)}
    links = {entry.name: entry for entry in base.iterdir() if entry not in own}
    for name, target in (links | {_SINGLE[started.suffix]: started}).items():
        link = folder / name
        # Of an earlier launch.
        link.unlink(missing_ok=True)
        link.symlink_to(target.resolve())
    return folder


def _check_base(folder: Path, hub_id: str | None, pointer: str) -> None:
    """Reject an adapter of another model, as far as names show; a wrong shape is detected when it is applied."""
    try:
        trained_on = json.loads((folder / _ADAPTER_FILE).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"spec.{pointer}: {_ADAPTER_FILE} cannot be read: {error}.") from error
    task_model, adapter_base = _hub_name(hub_id), _hub_name(trained_on)
    # A local path says nothing about the model, so only Hub names are compared.
    if None not in (task_model, adapter_base) and task_model != adapter_base:
        raise ModelError(
            f"spec.{pointer}: the adapter was trained on {trained_on}, but the run's model is {hub_id}.",
            hint=f"Write model.source.identifier: {trained_on}.",
        )


def _hub_name(name: Any) -> str | None:
    """Return the model name of a Hub id, without its owner; None for anything else."""
    owner, slash, model = name.partition("/") if isinstance(name, str) else ("", "", "")
    plain = owner and slash and model and "/" not in model and owner not in {".", "..", "~"}
    return model.lower() if plain else None


def _stamp(paths: Iterable[str], own: Path) -> str:
    """Return a digest that changes with the files below some paths."""
    files = sorted(each for path in paths for each in Path(path).rglob("*") if each.is_file())
    # The job's own workspace is unpacked again at each launch, so its times do not count.
    about = [
        (str(each), found.st_size, None if each.is_relative_to(own) else found.st_mtime_ns)
        for each in files
        for found in (each.stat(),)
    ]
    return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
