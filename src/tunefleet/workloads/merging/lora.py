"""The base and the adapters of a merge: where they are, what an adapter adds, what affects the merge."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from peft import LoraConfig
from peft.utils.other import get_pattern_key

from tunefleet.artifacts.archive import only_folder, unpacked_path
from tunefleet.errors import ModelError
from tunefleet.spec.base import is_hub_name
from tunefleet.spec.tasks.merge_task import MergeAdapterSpec, MergeTaskSpec
from tunefleet.workloads.common import base_model, containment, hub_files
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.merging.safetensors_reader import Tensor, open_file

_PREFIX: Final = "base_model.model."
_FACTORS: Final = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
    ".lora_magnitude_vector": "magnitude",
    ".lora_magnitude_vector.weight": "magnitude",
}
_UNDERSTOOD: Final = frozenset({
    "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "task_type", "peft_type", "inference_mode",
    "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias", "use_rslora",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
    "megatron_core", "qalora_group_size", "runtime_config", "eva_config", "use_dora", "ensure_weight_tying",
    "loftq_config",
})  # fmt: skip
"""Keys of an adapter's config that do not affect what is added, or that are handled here."""
# Initializations that leave the base unchanged.
_INITS: Final = frozenset({"gaussian", "eva", "orthogonal"})
_WEIGHTS = "checkpoint.load"
NEEDED: Final = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.py", "*.tiktoken", "*.md", "LICENSE*")
"""Files that are downloaded from a repository: weights as safetensors, and all small files."""


@dataclass(slots=True)
class Change:
    """What an adapter adds to one module: `scale · B · A`, or a part of it with DoRA."""

    scale: float = 0.0
    embedding: bool = False
    a: Tensor | None = None
    b: Tensor | None = None
    magnitude: Tensor | None = None

    @property
    def rank(self) -> int:
        """Number of rows of the first factor."""
        return self.a.shape[0] if self.a is not None else 0


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter.

    Args:
        changes: Module of the base → what is added to it.
        replaced: Tensor of the base → its replacement: a bias, or a fully trained layer.
    """

    label: str
    folder: Path
    weight: float
    config: Mapping[str, Any]
    changes: dict[str, Change] = field(default_factory=dict)
    replaced: dict[str, Tensor] = field(default_factory=dict)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of all modules, ascending."""
        return tuple(sorted({change.rank for change in self.changes.values()}))

    @property
    def uses_dora(self) -> bool:
        """Whether direction and magnitude were trained separately."""
        return any(change.magnitude is not None for change in self.changes.values())

    @property
    def saved_whole(self) -> tuple[str, ...]:
        """`modules_to_save`."""
        return tuple(self.config.get("modules_to_save") or ())

    def describe(self) -> dict[str, Any]:
        """Return the fields of the result."""
        scales = sorted({change.scale for change in self.changes.values()})
        return {
            "weight": self.weight,
            "ranks": list(self.ranks),
            "scales": scales,
            "modules": len(self.changes),
            "replaced": sorted(self.replaced),
            "rslora": bool(self.config.get("use_rslora")),
            "dora": self.uses_dora,
        }


def open_adapter(folder: Path, weight: float, label: str) -> Adapter:
    """Read an adapter's config and the headers of its file."""
    config = _config(folder, label)
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        raise ModelError(
            f"The {label} has no adapter_model.safetensors.",
            hint="Save it with `save_pretrained`; an adapter_model.bin is a pickle, which is unsafe to open.",
        )
    found = Adapter(label, folder, weight, config)
    for tensor in open_file(weights).tensors:
        _sort(found, tensor)
    _finish(found)
    return found


def _config(folder: Path, label: str) -> dict[str, Any]:
    path = folder / "adapter_config.json"
    if not path.is_file():
        whole = (folder / "config.json").is_file()
        raise ModelError(
            f"The {label} is a model, not an adapter." if whole else f"The {label} has no adapter_config.json.",
            hint="Name it as the base (`checkpoint.load`)." if whole else "Name a folder written by PEFT.",
        )
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelError(f"The adapter_config.json of the {label} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise ModelError(f"The adapter_config.json of the {label} does not hold a JSON object.")
    _check(config, label)
    return config


def _check(config: Mapping[str, Any], label: str) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"The {label} is of the type {kind}; only LoRA adapters can be merged.")
    # Unknown keys with a value may change what the adapter adds; guessing would corrupt the merge silently.
    unknown = sorted(name for name, value in config.items() if value and name not in _UNDERSTOOD)
    if unknown:
        raise ModelError(
            f"The {label} uses {', '.join(unknown)}, which cannot be merged exactly.",
            hint="Use base and adapter (`apply: runtime`), or merge it with the tool that trained it.",
        )
    init = config.get("init_lora_weights", True)
    # Other initializations, such as PiSSA, subtract a part of the base's weights.
    if isinstance(init, str) and init.lower() not in _INITS:
        raise ModelError(
            f"The {label} was initialized with init_lora_weights: {init}, which changes the base during training.",
            hint="Convert it first: PEFT's `save_pretrained` with `path_initial_model_for_weight_conversion`.",
        )
    if config.get("loftq_config") not in (None, {}):
        raise ModelError(f"The {label} was made with LoftQ, which changes the base during training.")


def _sort(adapter: Adapter, tensor: Tensor) -> None:
    name = tensor.name.removeprefix(_PREFIX)
    # After a resize of the embeddings, PEFT saves everything at their place: the trained values under two names, and
    # the original ones.
    if ".original_module." in name:
        return
    name = name.replace(".modules_to_save.", ".")
    for ending, part in _FACTORS.items():
        if name.endswith(ending):
            change = adapter.changes.setdefault(name.removesuffix(ending), Change())
            setattr(change, part, tensor)
            change.embedding = change.embedding or "lora_embedding" in ending
            return
    if ".lora_" in name:
        raise ModelError(
            f"The {adapter.label} has the tensor {tensor.name}, which cannot be merged exactly.",
            hint="Use base and adapter (`apply: runtime`), or train it without lora_bias.",
        )
    adapter.replaced[name.replace(".base_layer.", ".")] = tensor


def _finish(adapter: Adapter) -> None:
    if not adapter.changes and not adapter.replaced:
        raise ModelError(f"The {adapter.label} has no tensors.")
    scales = _Scales(adapter)
    for module, change in adapter.changes.items():
        if change.a is None or change.b is None:
            raise ModelError(f"The {adapter.label} has only one of the two factors for {module}.")
        if len(change.a.shape) != 2 or len(change.b.shape) != 2 or change.a.shape[0] != change.b.shape[1]:
            shapes = f"{list(change.a.shape)} and {list(change.b.shape)}"
            raise ModelError(
                f"The {adapter.label} has factors of the shapes {shapes} for {module}: only matrices can be merged."
            )
        change.scale = scales.of(module, change.rank)


class _Scales:
    """Scale of each product, by PEFT's rules for the config."""

    def __init__(self, adapter: Adapter) -> None:
        config = adapter.config
        self._label = adapter.label
        self._r = int(config.get("r", LoraConfig.r))
        self._alpha = float(config.get("lora_alpha", LoraConfig.lora_alpha))
        self._ranks: dict[str, int] = config.get("rank_pattern") or {}
        self._alphas: dict[str, float] = config.get("alpha_pattern") or {}
        self._root = bool(config.get("use_rslora"))

    def of(self, module: str, rank: int) -> float:
        """Return the scale for a module.

        Raises:
            ModelError: If the file has another rank than the config.
        """
        configured = int(self._ranks.get(get_pattern_key(list(self._ranks), module), self._r))
        if configured != rank:
            raise ModelError(
                f"The config of the {self._label} sets rank {configured} for {module}, its file has {rank}."
            )
        alpha = float(self._alphas.get(get_pattern_key(list(self._alphas), module), self._alpha))
        return alpha / (math.sqrt(rank) if self._root else rank)


def locate_merge_base(spec: MergeTaskSpec, inputs: Mapping[str, str], workspace: Path) -> Source:
    """Find the base, and download it if it is on the Hub: its files are read one by one.

    Raises:
        ModelError: If it does not exist.
        UnreachableError: If the Hub does not respond.
    """
    named = spec.model.source
    start = spec.start
    if start is not None:
        path = next((inputs[name] for name in (spec.start_pointer, _WEIGHTS) if name in inputs), None)
        if path is None:
            raise ModelError(f"The weights of {start.task or start.url or start.place} were not downloaded.")
        folder = only_folder(unpacked_path(Path(path), workspace))
        return base_model.locate(str(folder), str(folder), trust_remote_code=named.trust_remote_code)
    source = base_model.locate_named(named, inputs, workspace, trust_remote_code=named.trust_remote_code)
    if Path(source.path).is_dir():
        return source
    folder = hub_files.fetched(source.path, named.revision, NEEDED)
    return replace(source, path=str(folder), revision=None)


def locate_adapter(index: int, adapter: MergeAdapterSpec, inputs: Mapping[str, str], workspace: Path) -> Path:
    """Find an adapter, and download it if it is on the Hub."""
    pointer = f"model.adapters.{index}"
    path = next((inputs[name] for name in (f"{pointer}.path", pointer) if name in inputs), None)
    if path is not None:
        folder = only_folder(unpacked_path(Path(path), workspace))
    elif adapter.path is not None and is_hub_name(adapter.path):
        folder = hub_files.fetched(adapter.path, adapter.revision, NEEDED)
    else:
        raise ModelError(f"spec.{pointer}: {adapter.path or adapter.task_id or adapter.url} not found on this worker.")
    # Before PEFT reads the configuration, which may name other files.
    containment.check_adapter(folder)
    return folder


def label_of(index: int, adapter: MergeAdapterSpec) -> str:
    """Return the name of an adapter in messages."""
    place = adapter.name or adapter.path or adapter.task_id or adapter.url
    return f"adapter {place}" if place else f"adapter {index + 1}"
