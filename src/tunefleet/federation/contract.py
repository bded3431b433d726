"""The contract of a federation's updates, and the validation that each update must pass."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Self

from pydantic import BaseModel, ConfigDict

from tunefleet.errors import AdapterRefused
from tunefleet.federation.adapter import AdapterConfig, AdapterFile
from tunefleet.federation.floats import Buffers
from tunefleet.federation.layers import Parts, parts_of
from tunefleet.federation.update_checks import check_finite, product_norm, tensor_digest, values_digest
from tunefleet.spec.options.federation_options import FederationSpec


class Contract(BaseModel):
    """Common properties of a federation's adapters; stored as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_model: str | None
    """Name or path of the base model."""
    rank: int
    alpha: float
    use_rslora: bool
    rank_pattern: dict[str, int] = {}
    alpha_pattern: dict[str, float] = {}
    targets: tuple[str, ...] | str
    """Names of the layers in the config; for messages only, the tensors are compared."""
    layers: dict[str, tuple[int, int]]
    """Rows and columns of each module's update, independent of the rank."""
    factors: dict[str, tuple[str, str]]
    """Tensor names of A and B by module."""
    whole: dict[str, tuple[int, ...]] = {}
    """Tensor shapes of fully trained layers."""
    frozen: dict[str, str] = {}
    """Digests of the base model's tensors that PEFT saved with the adapter."""

    def to_json(self) -> str:
        """Return it as JSON."""
        return self.model_dump_json()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse the output of `to_json`."""
        return cls.model_validate_json(text)


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of an update's validation.

    Args:
        digest: Digest of names, types, shapes and values; equal for equal updates.
        norm: Frobenius norm of scale · B · A over all layers.
        norms: The same by module.
        rank: Rank in the config.
        dtypes: The types of its tensors, sorted.
        parameters: Number of parameters.
    """

    digest: str
    norm: float
    norms: Mapping[str, float]
    rank: int
    dtypes: tuple[str, ...]
    parameters: int
    size_bytes: int


def contract_of(config: AdapterConfig, file: AdapterFile) -> Contract:
    """Return the contract that matches an adapter.

    Raises:
        AdapterRefused: If the adapter is not supported.
    """
    parts = parts_of(config, file)
    return Contract(
        base_model=config.base_model,
        rank=config.rank,
        alpha=config.alpha,
        use_rslora=config.use_rslora,
        rank_pattern=dict(config.rank_pattern),
        alpha_pattern=dict(config.alpha_pattern),
        targets=config.targets if isinstance(config.targets, str) else tuple(sorted(config.targets)),
        layers={name: (layer.rows, layer.columns) for name, layer in parts.layers.items()},
        factors={name: (layer.a, layer.b) for name, layer in parts.layers.items()},
        whole={name: file.tensors[name].shape for name in parts.whole},
        frozen={name: tensor_digest(file, name) for name in parts.frozen},
    )


def check(
    contract: Contract,
    config: AdapterConfig,
    file: AdapterFile,
    *,
    mixed_ranks: bool = False,
    sha256: str | None = None,
) -> Checked:
    """Validate an update against the contract, reading every value once.

    Args:
        config: The update's config.
        file: The update's tensors.
        mixed_ranks: Whether rank and alpha may differ from the contract's.
        sha256: Digest of the file, if known.

    Raises:
        AdapterRefused: With the tensor and the reason.
    """
    check_base(contract.base_model, config.base_model)
    if not mixed_ranks:
        _check_scale(contract, config)
    parts = parts_of(config, file)
    _check_layers(contract, config, parts)
    _check_others(contract, parts, file)
    # The values come last, because this reads the complete file.
    buffers = Buffers()
    norms = {module: product_norm(file, layer, buffers) for module, layer in parts.layers.items()}
    for name in parts.whole:
        check_finite(file, name)
    return Checked(
        digest=values_digest(file, sha256),
        norm=sum(norm**2 for norm in norms.values()) ** 0.5,
        norms=norms,
        rank=config.rank,
        dtypes=tuple(sorted({tensor.dtype for tensor in file.tensors.values()})),
        parameters=sum(tensor.size for tensor in file.tensors.values()),
        size_bytes=file.size_bytes,
    )


def check_base(wanted: str | None, found: str | None) -> None:
    """Refuse an adapter of another base model.

    A path differs from machine to machine, so of a path the last part counts.

    Args:
        wanted: Name or path of the federation's base model; `None` if none is set.
        found: Base model in the update's config.

    Raises:
        AdapterRefused: If they differ.
    """
    if wanted is None or wanted == found:
        return
    if found is None:
        raise AdapterRefused(
            f"The adapter's config has no base model; this federation trains {wanted!r}.",
            hint="Set base_model_name_or_path in adapter_config.json.",
        )
    # A path differs from machine to machine, so only its last part is compared.
    if (_is_path(wanted) or _is_path(found)) and _last(wanted) == _last(found):
        return
    raise AdapterRefused(
        f"The adapter was trained on {found!r}; this federation trains {wanted!r}.", hint="Train on that model."
    )


def check_asked(spec: FederationSpec, config: AdapterConfig) -> None:
    """Refuse an adapter that does not match the federation's spec; used for the first update.

    Args:
        config: The update's config.

    Raises:
        AdapterRefused: With the difference.
    """
    check_base(spec.base_model, config.base_model)
    asked = spec.lora
    if asked is None:
        return
    pairs: list[tuple[str, object, object]] = [
        ("rank (r)", asked.r, config.rank),
        ("lora_alpha", float(asked.alpha), config.alpha),
        ("use_rslora", asked.use_rslora, config.use_rslora),
    ]
    pairs = [] if spec.mixed_ranks else pairs
    if not isinstance(asked.target_modules, str) and not isinstance(config.targets, str):
        pairs.append(("list of target_modules", sorted(asked.target_modules), sorted(config.targets)))
    pairs.append(("list of modules_to_save", sorted(asked.modules_to_save), sorted(config.modules_to_save)))
    for name, wanted, found in pairs:
        if wanted != found:
            raise AdapterRefused(
                f"The adapter's {name} is {found}; this federation requires {wanted}.", hint="Train with that value."
            )


def check_config(spec: FederationSpec, contract: Contract | None, config: AdapterConfig) -> None:
    """Refuse an adapter by its config alone, before training, when there are no tensors yet.

    Args:
        contract: The contract from the first update; `None` before that.
        config: The adapter's config.

    Raises:
        AdapterRefused: With the difference.
    """
    check_asked(spec, config)
    if contract is not None:
        check_base(contract.base_model, config.base_model)
        if not spec.mixed_ranks:
            _check_scale(contract, config)


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", "/", "\\")) or name[1:3] in (":\\", ":/") or name.count("/") > 1


def _last(name: str) -> str:
    return PureWindowsPath(name).name if "\\" in name else PurePosixPath(name).name


def _check_scale(contract: Contract, config: AdapterConfig) -> None:
    pairs: list[tuple[str, object, object]] = [
        ("rank (r)", contract.rank, config.rank),
        ("lora_alpha", contract.alpha, config.alpha),
        ("use_rslora", contract.use_rslora, config.use_rslora),
        ("rank_pattern", contract.rank_pattern, dict(config.rank_pattern)),
        ("alpha_pattern", contract.alpha_pattern, dict(config.alpha_pattern)),
    ]
    for name, wanted, found in pairs:
        if wanted != found:
            raise AdapterRefused(
                f"The adapter's {name} is {found}; this federation's is {wanted}.",
                hint="Train with that value, or create the federation with `mixed_ranks` and the strategy "
                "fedavg_exact.",
            )


def _check_layers(contract: Contract, config: AdapterConfig, parts: Parts) -> None:
    missing = sorted(set(contract.factors) - set(parts.layers))
    strange = sorted(set(parts.layers) - set(contract.factors))
    if missing or strange:
        module = (missing or strange)[0]
        tensor = contract.factors[module][0] if missing else parts.layers[module].a
        count = len(missing or strange)
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise AdapterRefused(
            f"The tensor {tensor!r}{more} {_problem(bool(missing))}.",
            hint=f"Its target_modules are {_listed(config.targets)}; the federation's are {_listed(contract.targets)}.",
            tensor=tensor,
        )
    for module, layer in parts.layers.items():
        rows, columns = contract.layers[module]
        _check_size(layer.b, "rows", layer.rows, rows)
        _check_size(layer.a, "columns", layer.columns, columns)


def _problem(missing: bool) -> str:
    return "is missing" if missing else "is not part of this federation"


def _listed(targets: Collection[str] | str) -> str:
    return (targets if isinstance(targets, str) else ", ".join(sorted(targets))) or "not given"


def _check_size(name: str, axis: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise AdapterRefused(
            f"The tensor {name!r} has {found} {axis}; this federation requires {wanted}.",
            hint="Train on the same base model.",
            tensor=name,
        )


def _check_others(contract: Contract, parts: Parts, file: AdapterFile) -> None:
    for wanted, found in ((set(contract.whole), set(parts.whole)), (set(contract.frozen), set(parts.frozen))):
        if wanted != found:
            name = min(wanted ^ found)
            raise AdapterRefused(
                f"The tensor {name!r} {_problem(name in wanted)}.",
                hint="Train and save with the same modules_to_save on all workers.",
                tensor=name,
            )
    for name, shape in contract.whole.items():
        if file.tensors[name].shape != shape:
            raise AdapterRefused(
                f"The tensor {name!r} has the shape {file.tensors[name].shape}; this federation requires {shape}.",
                hint="Train on the same base model.",
                tensor=name,
            )
    for name, digest in contract.frozen.items():
        if tensor_digest(file, name) != digest:
            raise AdapterRefused(
                f"The tensor {name!r} belongs to the base model, but differs from the other workers'.",
                hint="Train on the same base model, list the layer in modules_to_save, or save with "
                "save_embedding_layers=False.",
                tensor=name,
            )
