"""Combines several adapters by PEFT's `add_weighted_adapter`, without reading the base's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch
from peft import PeftModel

from tunefleet.errors import ModelError
from tunefleet.spec.tasks.merge_task import MergeOptions
from tunefleet.workloads.merging.lora import Adapter, Change
from tunefleet.workloads.merging.skeleton import Skeleton, without_storage

_NAME: Final = "merged"
_ONE_RANK: Final = frozenset({"linear", "ties", "dare_linear", "dare_ties"})
_DENSITY: Final = 0.5


def check(adapters: Sequence[Adapter], skeleton: Skeleton, options: MergeOptions) -> None:
    """Check that adapters can be combined, before anything is computed.

    Raises:
        ModelError: If they cannot be combined; names the difference.
    """
    first = adapters[0]
    for adapter in adapters:
        _check_one(adapter, skeleton)
    for other in adapters[1:]:
        _check_bases(first, other)
        if options.method in _ONE_RANK:
            _check_alike(first, other, options.method)
    kinds = {type(adapter.config.get("target_modules")) for adapter in adapters}
    if len(kinds) > 1:
        raise ModelError(
            "Some adapters list their target modules, but others use a pattern.",
            hint="Merge them into the base (`into: base`), which does not need a common form.",
        )


def _check_one(adapter: Adapter, skeleton: Skeleton) -> None:
    if adapter.uses_dora:
        raise ModelError(f"The {adapter.label} uses DoRA, which is not a sum and cannot be combined with others.")
    if adapter.replaced:
        named = sorted(adapter.replaced)[0]
        raise ModelError(
            f"The {adapter.label} contains a complete {named}, which cannot be combined with other adapters.",
            hint="Merge it into the base on its own.",
        )
    for module in adapter.changes:
        skeleton.kind_of(module)


def _check_bases(first: Adapter, other: Adapter) -> None:
    names = [str(each.config.get("base_model_name_or_path") or "") for each in (first, other)]
    # Training runs on different machines have different folders for one model; only Hub names can be compared.
    if all(name and not Path(name).is_absolute() for name in names) and names[0] != names[1]:
        raise ModelError(
            f"The {first.label} was trained on {names[0]}, and the {other.label} on {names[1]}.",
            hint="Only adapters of one base can be merged.",
        )


def _check_alike(first: Adapter, other: Adapter, method: str) -> None:
    hint = "Use `method: svd` or `cat`, or merge them into the base."
    if first.ranks != other.ranks or len(first.ranks) > 1:
        ranks = [", ".join(map(str, each.ranks)) for each in (first, other)]
        raise ModelError(
            f"The method {method} needs adapters of one rank; the {first.label} has {ranks[0]}, and the "
            f"{other.label} has {ranks[1]}.",
            hint=hint,
        )
    odd = sorted(set(first.changes) ^ set(other.changes))
    if odd:
        having, lacking = (first, other) if odd[0] in first.changes else (other, first)
        raise ModelError(
            f"The method {method} needs adapters of the same modules; the {having.label} changes {odd[0]}, and "
            f"the {lacking.label} does not.",
            hint=hint,
        )


def combine(adapters: Sequence[Adapter], skeleton: Skeleton, options: MergeOptions, target: Path) -> dict[str, Any]:
    """Write the combined adapter.

    Returns:
        `rank`, and `error_of_sum`: deviation of the result from the weighted sum of the adapters' products, relative to
        its size, over all modules together and in the worst of them.

    Raises:
        ModelError: If PEFT cannot combine them, or the result is not finite.
    """
    torch.manual_seed(options.seed)
    # PEFT needs modules to attach to, but `add_weighted_adapter` reads the adapters only.
    model = without_storage(skeleton)
    names = [f"adapter_{index}" for index in range(len(adapters))]
    try:
        tuned = PeftModel.from_pretrained(model, str(adapters[0].folder), adapter_name=names[0])
        for name, adapter in zip(names[1:], adapters[1:], strict=True):
            tuned.load_adapter(str(adapter.folder), adapter_name=name)
        # The result's scale is 1: PEFT would use the root of the rank if the first adapter does.
        tuned.peft_config[names[0]] = replace(tuned.peft_config[names[0]], use_rslora=False)
        tuned.base_model.add_weighted_adapter(
            names,
            [adapter.weight for adapter in adapters],
            _NAME,
            combination_type=options.method,
            svd_rank=options.svd_rank,
            svd_full_matrices=False,
            density=options.density or _DENSITY,
            majority_sign_method=options.majority_sign or "total",
        )
    except (ValueError, RuntimeError, KeyError) as error:
        raise ModelError(f"The adapters cannot be combined: {str(error).splitlines()[0]}") from error
    errors = _errors(adapters, tuned)
    config = tuned.peft_config[_NAME]
    config.base_model_name_or_path = adapters[0].config.get("base_model_name_or_path")
    tuned.save_pretrained(str(target), selected_adapters=[_NAME], save_embedding_layers=False)
    for path in sorted((target / _NAME).iterdir()):
        path.rename(target / path.name)
    # PEFT saves a named adapter in a subfolder; consumers expect the files at the top.
    (target / _NAME).rmdir()
    return {"rank": int(config.r), "error_of_sum": errors}


def _errors(adapters: Sequence[Adapter], tuned: Any) -> dict[str, float]:
    """Return the deviation of the result from the sum, computed from the small factors alone."""
    worst, missed, whole = 0.0, 0.0, 0.0
    layers = dict(tuned.base_model.model.named_modules())
    for module in sorted({name for adapter in adapters for name in adapter.changes}):
        layer = layers[module]
        parts = [
            (adapter.weight * change.scale, *_factors(change))
            for adapter in adapters
            if (change := adapter.changes.get(module)) is not None
        ]
        wanted = _square(parts)
        made = (float(layer.scaling[_NAME]), *_own(layer))
        if not all(bool(torch.isfinite(factor).all()) for factor in made[1:]):
            raise ModelError(
                f"The merged {module} has values that are not finite.",
                hint="One of the adapters is broken: evaluate them one by one.",
            )
        apart = _square([*parts, (-made[0], made[1], made[2])])
        missed, whole = missed + apart, whole + wanted
        worst = max(worst, (apart / wanted) ** 0.5 if wanted > 0 else 0.0)
    return {"overall": (missed / whole) ** 0.5 if whole > 0 else 0.0, "worst_module": worst}


def _factors(change: Change) -> tuple[torch.Tensor, torch.Tensor]:
    if change.a is None or change.b is None:
        raise ModelError("A factor of the adapter is missing.")
    return change.a.load(), change.b.load()


def _own(layer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if _NAME in layer.lora_A:
        return layer.lora_A[_NAME].weight.detach().float(), layer.lora_B[_NAME].weight.detach().float()
    return layer.lora_embedding_A[_NAME].detach().float(), layer.lora_embedding_B[_NAME].detach().float()


def _square(parts: Sequence[tuple[float, torch.Tensor, torch.Tensor]]) -> float:
    """Return the square of the Frobenius norm of `Σ scale · B · A`, without computing the products."""
    # ‖BA‖² is the trace of (BᵀB)(AAᵀ): small matrices instead of full ones.
    left = torch.cat([scale * b for scale, _, b in parts], dim=1).double()
    right = torch.cat([a for _, a, _ in parts], dim=0).double()
    return max(0.0, float(((left.T @ left) * (right @ right.T)).sum()))
