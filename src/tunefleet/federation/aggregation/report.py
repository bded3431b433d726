"""What an average says of itself: weights, who was left out and why, and the error of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LayerReport:
    """How near one layer of an average is to the average of the products.

    Args:
        norm: Frobenius norm of the exact average of scale · B · A.
        error: Frobenius norm of what the outcome leaves out, divided by `norm`; 0 where nothing is left out.
    """

    rank: int
    norm: float
    error: float


@dataclass(frozen=True, slots=True)
class Report:
    """What an average says of itself; `to_json` is kept with the version.

    Args:
        weights: By worker; they sum to one. The coordinate-wise rules give each worker its equal part.
        excluded: Workers that do not count at all, each with the reason.
        norms: By worker, how far the update changes the global adapter (between products); empty if the strategy does
            not ask.
        clipped: By worker, the part of its change that was kept; only of those that were shortened.
        scores: By worker, what Krum chooses by: the sum of the squared distances to its neighbours.
        layers: By module, of an average of products; of one of factors once `fidelity.with_error` has measured it.
        rank: Of the outcome's config.
        dtype: Of the outcome's tensors; `mixed` if they differ.
        residual: Name of the file that holds what the outcome leaves out, to be merged into the base; null if none.
        notes: What else is worth knowing, in sentences.
        bytes_read: Size of the files that were averaged.
        bytes_written: Size of the outcome.
        seconds: How long it took.
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
        """What the outcome leaves out of the exact average, over all layers; null where nothing exact was reckoned."""
        if not self.layers:
            return None
        total = sum(layer.norm**2 for layer in self.layers.values())
        lost = sum((layer.norm * layer.error) ** 2 for layer in self.layers.values())
        return float((lost / total) ** 0.5) if total > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON has it, `error` included."""
        found = asdict(self)
        return {**found, "notes": list(self.notes), "error": self.error}
