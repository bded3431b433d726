"""Report of an aggregation: weights, exclusions with reasons, and the error of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LayerReport:
    """Error of one layer relative to the exact average of the products.

    Args:
        norm: Frobenius norm of the exact average of scale · B · A.
        error: Frobenius norm of the missing part, divided by `norm`; 0 if the output is exact.
    """

    rank: int
    norm: float
    error: float


@dataclass(frozen=True, slots=True)
class Report:
    """Report of an aggregation; `to_json` is stored with the version.

    Args:
        weights: By worker; they sum to one. Elementwise rules weigh all workers equally.
        excluded: Excluded workers with the reason.
        norms: By worker, the length of the change of the global adapter (on products); empty if the strategy does not
            measure it.
        clipped: By worker, the part of its change that was kept; only clipped ones.
        scores: By worker, Krum's score: the sum of the squared distances to its neighbors.
        layers: By module; for averages of factors only after `fidelity.with_error`.
        rank: Rank of the output config.
        dtype: Type of the output tensors; `mixed` if they differ.
        residual: Name of the residual's file, to be merged into the base model; `None` if there is none.
        notes: Further remarks, as sentences.
        bytes_read: Size of the averaged files.
        bytes_written: Size of the output.
        seconds: Duration.
    """

    strategy: str
    weights: Mapping[str, float]
    rank: int
    dtype: str
    bytes_read: int
    bytes_written: int
    seconds: float
    excluded: Mapping[str, str] = field(default_factory=dict)
    norms: Mapping[str, float] = field(default_factory=dict)
    clipped: Mapping[str, float] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[str, LayerReport] = field(default_factory=dict)
    residual: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Relative error of the output over all layers; `None` if it was not measured."""
        if not self.layers:
            return None
        total = sum(layer.norm**2 for layer in self.layers.values())
        lost = sum((layer.norm * layer.error) ** 2 for layer in self.layers.values())
        return float((lost / total) ** 0.5) if total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the report for JSON, including `error`."""
        found = asdict(self)
        return {**found, "notes": list(self.notes), "error": self.error}
