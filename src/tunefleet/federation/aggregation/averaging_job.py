"""State of one aggregation: inputs and report data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tunefleet.federation.aggregation.clipping import kept_of_factors, kept_of_products, lengths
from tunefleet.federation.aggregation.report import LayerReport
from tunefleet.federation.aggregation.sources import Source, common_dtype
from tunefleet.spec.options.federation_options import StrategySpec

Shapes = dict[str, tuple[str, tuple[int, ...]]]


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
