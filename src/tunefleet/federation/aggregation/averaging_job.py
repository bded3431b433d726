"""One aggregation: its inputs, and its report with weights, exclusions and the error of each layer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tunefleet.federation.aggregation.clipping import kept_of_factors, kept_of_products, lengths
from tunefleet.federation.aggregation.sources import Source, common_dtype
from tunefleet.spec.options.federation_options import StrategySpec

Shapes = dict[str, tuple[str, tuple[int, ...]]]


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
        layers: By module; for averages of factors only after `strategy.with_error`.
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


@dataclass
class AveragingJob:
    """State of one aggregation.

    Args:
        sources: The updates, ordered by worker.
        previous: The global adapter that they started from; `None` before the first version.
        into: Output folder.
        dtype: Output type; `None` for that of the updates.
        state: The server optimizer's previous state.
        new_state: Output file of its new state.
    """

    spec: StrategySpec
    sources: list[Source]
    previous: Source | None
    into: Path
    dtype: str | None = None
    state: Path | None = None
    new_state: Path | None = None

    weights: dict[str, float] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    norms: dict[str, float] = field(default_factory=dict)
    clipped: dict[str, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    layers: dict[str, LayerReport] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bytes_written: int = 0

    def dtype_of(self, name: str) -> str:
        """Return the output type of a tensor."""
        return self.dtype or common_dtype(self.sources, name)

    def shapes(self, names: Iterable[str], like: Source) -> Shapes:
        """Return type and shape of output tensors that are shaped like an adapter's."""
        return {name: (self.dtype_of(name), like.file.tensors[name].shape) for name in names}

    def shares(self, of: list[Source] | None = None) -> list[float]:
        """Compute the weights of updates, and add them to the report.

        Args:
            of: The updates that count. Default: all.
        """
        counted = self.sources if of is None else of
        found = weights(counted, self.spec)
        self.weights.update({source.worker: share for source, share in zip(counted, found, strict=True)})
        return found

    def clip(self, *, factors: bool) -> list[float]:
        """Return which part of each update's change is kept, and add clipped ones to the report.

        Args:
            factors: Whether factors are averaged, not products.
        """
        most = self.spec.clip_norm
        if most is None:
            return [1.0] * len(self.sources)
        found = lengths(self.sources, self.previous)
        kept = kept_of_factors(self.sources, self.previous, found, most) if factors else kept_of_products(found, most)
        for source, length, part in zip(self.sources, found, kept, strict=True):
            self.norms[source.worker] = length
            if part < 1.0:
                self.clipped[source.worker] = part
        if self.previous is None and self.sources[0].parts.whole:
            self.notes.append("Fully trained layers are not clipped before the first global version.")
        return kept


def weights(sources: Sequence[Source], spec: StrategySpec) -> list[float]:
    """Return the weights of the updates, which sum to one.

    Args:
        spec: The weighting, and the maximum of examples that count.
    """
    if spec.weighting == "examples":
        most = spec.max_examples or math.inf
        counts = [float(min(source.num_examples, most)) for source in sources]
    else:
        counts = [1.0] * len(sources)
    total = math.fsum(counts)
    return [count / total for count in counts]
