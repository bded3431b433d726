"""Verifies a merge by a forward pass: logits of the merged model against base and adapters in PEFT."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM

from tunefleet.errors import MachineError, ModelError
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.merging.lora import Adapter

_TEXTS: Final = 4
_LENGTH: Final = 24
_SEED: Final = 20
TOLERANCES: Final = {"F64": 1e-4, "F32": 1e-4, "F16": 5e-3, "BF16": 4e-2}
"""Dtype of the merged weights → tolerance of the logits, relative to their standard deviation: the sum is rounded to
that dtype."""
# Memory of a model while it is loaded, relative to its weights.
_LOADING_FACTOR: Final = 1.3


@dataclass(frozen=True, slots=True)
class Comparison:
    """The logits of the merged model compared with those of base and adapters, both computed in float32."""

    error: float
    largest: float
    effect: float
    tolerance: float
    tokens: int

    @property
    def telling(self) -> bool:
        """Whether the adapter's effect is larger than the rounding of the base's dtype."""
        return self.effect > 2 * self.error

    def as_json(self) -> dict[str, Any]:
        """Return the fields of the result."""
        return {
            "passed": True,
            "relative_error": self.error,
            "largest_error": self.largest,
            "tolerance": self.tolerance,
            "adapter_effect": self.effect,
            "telling": self.telling,
            "positions": self.tokens,
            "compared_in": "float32",
        }


def require_memory(parameters: int) -> None:
    """Check that a model fits into memory in float32."""
    needed = int(parameters * 4 * _LOADING_FACTOR)
    available = psutil.virtual_memory().available
    if needed > available:
        raise MachineError(
            f"The forward pass that verifies the merge needs about {needed / 1e9:.1f} GB of memory, and "
            f"{available / 1e9:.1f} GB are available.",
            hint="Set merge.verify: false, or use a worker with more memory. The merge itself needs little.",
        )


def into_base(source: Source, adapters: Sequence[Adapter], merged: Path, rows: int, dtype: str) -> Comparison:
    """Compare a merged model with base and adapters."""
    limit, alone, together = _reference(source, adapters, rows)
    gc.collect()  # one of the models at a time
    found = _logits(_whole(merged, source), limit)
    return _compared(found, together, alone, TOLERANCES[dtype])


def into_adapter(source: Source, folder: Path) -> Comparison:
    """Run a base model with a combined adapter; there is no reference to compare it with."""
    model = _load(source.path, source)
    limit = model.get_input_embeddings().weight.shape[0]
    alone = _logits(model, limit)
    together = _logits(PeftModel.from_pretrained(model, str(folder)), limit)
    spread = float(together.std())
    effect = float((together - alone).square().mean().sqrt()) / spread
    return Comparison(0.0, 0.0, effect, 0.0, together[..., 0].numel())


def _reference(source: Source, adapters: Sequence[Adapter], rows: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    model = _load(source.path, source)
    limit: int = model.get_input_embeddings().weight.shape[0]
    alone = _logits(model, limit)
    if rows != limit:
        # Like the training run did: the adapter's embeddings have more rows.
        model.resize_token_embeddings(rows, mean_resizing=False)
    if not adapters:
        return limit, alone, alone
    names = [f"adapter_{index}" for index in range(len(adapters))]
    tuned = PeftModel.from_pretrained(model, str(adapters[0].folder), adapter_name=names[0])
    for name, adapter in zip(names[1:], adapters[1:], strict=True):
        tuned.load_adapter(str(adapter.folder), adapter_name=name)
    tuned.base_model.set_adapter(names)
    for layer in (each for each in tuned.modules() if isinstance(each, LoraLayer)):
        for name, adapter in zip(names, adapters, strict=True):
            if name in layer.scaling:
                # PEFT has no weights for active adapters, so the scale carries them.
                layer.scaling[name] *= adapter.weight
    return limit, alone, _logits(tuned, limit)


def _whole(folder: Path, source: Source) -> Any:
    model, loading_info = AutoModelForCausalLM.from_pretrained(
        str(folder),
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=source.trust_remote_code,
    )
    kinds = ("missing_keys", "unexpected_keys", "mismatched_keys")
    wrong = {name: sorted(loading_info.get(name) or ()) for name in kinds}
    named = [f"{name.removesuffix('_keys')} {keys[0]}" for name, keys in wrong.items() if keys]
    if named:
        raise ModelError(f"The merged model cannot be loaded completely: {', '.join(named)}.")
    return model


def _load(path: str, source: Source) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        path, revision=source.revision, trust_remote_code=source.trust_remote_code, dtype=torch.float32
    )


@torch.no_grad()
def _logits(model: Any, limit: int) -> torch.Tensor:
    """Return the logits for fixed random tokens below a limit."""
    model.eval()
    # The same tokens for both models.
    generator = torch.Generator().manual_seed(_SEED)
    tokens = torch.randint(0, limit, (_TEXTS, _LENGTH), generator=generator)
    found: torch.Tensor = model(input_ids=tokens).logits.float()
    if not bool(torch.isfinite(found).all()):
        raise ModelError(
            "The forward pass returns values that are not finite.", hint="The base or an adapter is broken."
        )
    return found


def _compared(found: torch.Tensor, wanted: torch.Tensor, alone: torch.Tensor, tolerance: float) -> Comparison:
    # Vocabularies may differ by added tokens.
    shared = min(found.shape[-1], wanted.shape[-1], alone.shape[-1])
    spread = float(wanted.std()) or 1.0
    error = float((found - wanted).square().mean().sqrt()) / spread
    largest = float((found - wanted).abs().max()) / spread
    effect = float((wanted[..., :shared] - alone[..., :shared]).square().mean().sqrt()) / spread
    if error > tolerance:
        raise ModelError(
            f"The merged model differs from base and adapters: its logits deviate by {error:.2g} of their spread, "
            f"and {tolerance:g} are allowed (the adapters change them by {effect:.2g}).",
            hint="This is a defect of the merge or of PEFT; use base and adapter (`apply: runtime`) instead.",
        )
    return Comparison(error, largest, effect, tolerance, found[..., 0].numel())
