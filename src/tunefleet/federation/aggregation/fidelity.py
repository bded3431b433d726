"""How far an adapter is from the exact average of some updates, layer by layer, without forming a product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tunefleet.errors import InputError
from tunefleet.federation.aggregation.report import LayerReport, Report
from tunefleet.federation.aggregation.sources import Update, opened, update_in
from tunefleet.federation.aggregation.stacks import stack_of
from tunefleet.federation.floats import Room
from tunefleet.spec.options.federation_options import StrategyName, StrategySpec

# Strategies that are meant as an average and say it with factors; the others mean to be something else.
_MEANS_OF_FACTORS: Final[frozenset[StrategyName]] = frozenset({"fedavg", "fedprox"})


def product_error(updates: Sequence[Update], weights: Mapping[str, float], adapter: Update) -> dict[str, LayerReport]:
    """Measure what an average of factors, or any other adapter, gets wrong.

    Args:
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


def with_error(report: Report, spec: StrategySpec, updates: Sequence[Update], into: Path) -> Report:
    """Add to the report of an average of factors how far it is from the average of the products.

    Args:
        spec: The strategy that made it.
        updates: What it was made of.
        into: Where it was made.

    Returns:
        The report with its `layers`; as it was where the strategy does not mean the average, or shortened an update.
        A note says so where the ranks sum to more than can be measured.
    """
    if spec.name not in _MEANS_OF_FACTORS or report.clipped:
        return report
    try:
        layers = product_error(updates, report.weights, update_in(into))
    except InputError as error:
        return replace(report, notes=(*report.notes, f"The error of the average was not measured: {error.message}"))
    return replace(report, layers=layers)
