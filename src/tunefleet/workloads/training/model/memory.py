"""Estimates the memory of a training run before anything is allocated, corrected by measurements of earlier runs."""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from tunefleet.analysis.memory import PLAIN, Estimate, Load, Shape, estimate
from tunefleet.spec import LoraSpec, ModelTrainingSpec
from tunefleet.trainer_control.files import read_json, write_json
from tunefleet.trainer_control.journal.null import Journal
from tunefleet.workloads.common.base_model import Source
from tunefleet.workloads.training.model.hardware import Kernels

logger = logging.getLogger(__name__)

# Next to the job folders: ratios of measured to estimated memory of earlier runs.
RATIOS_FILE = "memory-estimates.json"
# Bounds of a correction: a larger ratio is a measurement error rather than a property of the model.
_MAX_RATIO = 5.0
# Below this, the fixed cost of the process dominates and the ratio says nothing about the model.
_MIN_MEASURED_BYTES = 256 << 20
_GIB = 1 << 30


def model_shape(source: Source, spec: ModelTrainingSpec) -> Shape:
    """Read the model's configuration and count its weights without allocating any.

    Raises:
        Exception: Anything that the model's own code raises; the caller continues without an estimate.
    """
    config = AutoConfig.from_pretrained(
        source.path, revision=source.revision, trust_remote_code=source.trust_remote_code
    )
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=source.trust_remote_code)
    weights = sum(parameter.numel() for parameter in model.parameters())
    head = model.get_output_embeddings()
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head}
    text = config.get_text_config()
    hidden = int(getattr(text, "hidden_size", 0))
    return Shape(
        weights=weights,
        linear_weights=sum(module.weight.numel() for module in linear.values()),
        trained=weights if spec.adapter is None else _adapter_size(spec.adapter, linear),
        layers=int(getattr(text, "num_hidden_layers", 0)),
        hidden=hidden,
        intermediate=int(getattr(text, "intermediate_size", 0) or 4 * hidden),
        vocabulary=int(getattr(text, "vocab_size", 0)),
    )


class Memory:
    """Estimates memory before a run, measures it afterwards, and saves the ratio."""

    def __init__(
        self, results_dir: Path, spec: ModelTrainingSpec, device: str, share: float | None, load: Load = PLAIN
    ) -> None:
        self._file = results_dir / RATIOS_FILE
        # Kept as is: the spelling is part of the keys in the saved file.
        quantised = "quantised" if spec.quantized else "plain"
        self._key = " ".join([spec.model.source.identifier, spec.task_type, quantised, device])
        self._spec = spec
        self._load = load
        self._device = device
        self._share = share
        self._before = _peak(device)
        self.estimate: Estimate | None = None

    def report_estimate(
        self, source: Source, kernels: Kernels, length: int, journal: Journal, labelled: float | None = None
    ) -> None:
        """Estimate the memory and report it with the free memory; a warning if it will not fit."""
        try:
            shape = model_shape(source, self._spec)
        except Exception:  # a model's own code may raise anything, and the run does not depend on the estimate
            logger.warning("The memory of the training run cannot be estimated", exc_info=True)
            return
        correction = self._ratios().get(self._key, 1.0)
        self.estimate = made = estimate(
            shape,
            self._spec,
            kernels.compute,
            length,
            liger=kernels.liger,
            labelled=1.0 if labelled is None or self._device != "cpu" else labelled,
            correction=correction,
            load=self._load,
        )
        free = _available(self._device, self._share)
        short = free is not None and made.total_bytes > free
        text = f"Estimated peak memory: {made.total_bytes / _GIB:.2f} GiB"
        text += "" if free is None else f"; {free / _GIB:.2f} GiB are free"
        text += "." if not short else f": this will not fit. {_hint(self._spec, made)}"
        figures = {name: value for name, value in asdict(made).items() if value is not None}
        data = {"total_bytes": made.total_bytes, "available_bytes": free, "device": self._device, **figures}
        journal.event("memory.estimate", text, "warning" if short else "info", data)

    def outcome(self) -> dict[str, Any]:
        """Return the memory figures of the result, and save the measured ratio for later estimates."""
        peak = _peak(self._device)
        # The peak of a CPU process includes the libraries loaded before; CUDA counts allocated tensors only.
        taken = None if peak is None else max(peak - (0 if self._device == "cuda" else self._before or 0), 0)
        if taken and self.estimate is not None and self.estimate.raw_bytes >= _MIN_MEASURED_BYTES:
            self._save_ratio(min(max(taken / max(self.estimate.raw_bytes, 1), 1 / _MAX_RATIO), _MAX_RATIO))
        estimated = self.estimate.total_bytes if self.estimate else None
        return {"estimated_bytes": estimated, "peak_bytes": taken, "device": self._device}

    def _ratios(self) -> Mapping[str, float]:
        known = read_json(self._file) or {}
        return {name: float(value) for name, value in known.items() if isinstance(value, int | float)}

    def _save_ratio(self, ratio: float) -> None:
        try:
            write_json(self._file, {**self._ratios(), self._key: round(ratio, 4)})
        except OSError as error:
            logger.warning("The measured memory is not saved: %s", error)


def _adapter_size(lora: LoraSpec, linear: Mapping[str, nn.Linear]) -> int:
    targets = lora.target_modules
    chosen = [
        module
        for name, module in linear.items()
        if targets == "all-linear" or any(name == target or name.endswith(f".{target}") for target in targets)
    ]
    return sum(lora.r * (module.in_features + module.out_features) for module in chosen)


def _available(device: str, share: float | None) -> int | None:
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return int(free if share is None else min(free, share * total))
    return int(psutil.virtual_memory().available) if device == "cpu" else None


def _peak(device: str) -> int | None:
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    # `ru_maxrss` is in bytes on macOS and in KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit if device == "cpu" else None


def _hint(spec: ModelTrainingSpec, made: Estimate) -> str:
    training = spec.training
    if made.activations_bytes + made.logits_bytes > made.raw_bytes // 3:
        if not training.gradient_checkpointing:
            return "Set `training.gradient_checkpointing: true`, or lower `training.max_seq_length` or `batch_size`."
        return "Lower `training.max_seq_length` or `training.batch_size`."
    if spec.adapter is None:
        how = "Use `taskType: lora_sft`" if spec.task_type == "sft" else "Add a `lora` block"
        return f"{how}, or `training.optim: adamw_8bit`."
    return "Quantize the base model with `quantization.load_in_4bit: true`, or use a smaller one."
