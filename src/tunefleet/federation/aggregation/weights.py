"""How much each update counts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tunefleet.federation.aggregation.sources import Source
from tunefleet.spec.options.federation_options import StrategySpec


def weights(sources: Sequence[Source], spec: StrategySpec) -> list[float]:
    """Return each update's weight; they sum to one over what is there.

    Args:
        sources: The updates.
        spec: Whether examples count, and how many at most.
    """
    if spec.weighting == "examples":
        most = spec.max_examples or math.inf
        counts = [float(min(source.num_examples, most)) for source in sources]
    else:
        counts = [1.0] * len(sources)
    total = math.fsum(counts)
    return [count / total for count in counts]
