"""How far an adapter is from the exact average of some updates, layer by layer, without forming a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tunefleet.federation.report import LayerReport
from tunefleet.federation.room import Room
from tunefleet.federation.sources import opened
from tunefleet.federation.stacks import stack_of
from tunefleet.federation.update import Update


def product_error(updates: Sequence[Update], weights: Mapping[str, float], adapter: Update) -> dict[str, LayerReport]:
    """Measure what an average of factors, or any other adapter, gets wrong.

    Args:
        updates: The updates.
        weights: By worker, what its scale · B · A counts; a worker that is not named counts nothing.
        adapter: What is measured.

    Returns:
        By module, the norm of Σ wᵢ scaleᵢ Bᵢ Aᵢ, and the distance of the adapter's scale · B · A from it, divided by
        that norm. Distances under 1e-7 are beyond what is measured.

    Raises:
        AdapterRefused: If they do not fit each other.
    """
    found: dict[str, LayerReport] = {}
    room = Room()
    with opened(updates, adapter) as (sources, measured):
        assert measured is not None
        shares = [weights.get(source.worker, 0.0) for source in sources]
        for module in sources[0].parts.layers:
            stack = stack_of([*sources, measured], module, [*shares, -1.0], room)
            inner = stack.products(stack.grams())
            true = max(float(inner[:-1, :-1].sum()), 0.0) ** 0.5
            apart = max(float(inner.sum()), 0.0) ** 0.5
            error = apart / true if true > 0 else float(np.sign(apart))
            found[module] = LayerReport(measured.parts.layers[module].rank, true, error)
    return found
