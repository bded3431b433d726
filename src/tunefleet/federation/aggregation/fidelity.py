"""Distance of an adapter from the exact average of updates, by layer, without computing a product."""

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
from tunefleet.federation.floats import Buffers
from tunefleet.spec.options.federation_options import StrategyName, StrategySpec

# Strategies that approximate the average with factors; the others do not aim at the average.
_MEANS_OF_FACTORS: Final[frozenset[StrategyName]] = frozenset({"fedavg", "fedprox"})


def product_error(updates: Sequence[Update], weights: Mapping[str, float], adapter: Update) -> dict[str, LayerReport]:
    """Measure the error of an average of factors, or of any other adapter.

    Args:
        weights: Weight of each worker's scale · B · A; 0 for a worker that is missing.
        adapter: The adapter to measure.

    Returns:
        By module, the norm of the exact average Σ wᵢ scaleᵢ Bᵢ Aᵢ, and the relative distance of the adapter's
        scale · B · A from it. Relative distances below 1e-7 are not resolved.

    Raises:
        AdapterRefused: If the adapters do not match.
    """
    found: dict[str, LayerReport] = {}
    buffers = Buffers()
    with opened(updates, adapter) as (sources, measured):
        assert measured is not None
        shares = [weights.get(source.worker, 0.0) for source in sources]
        for module in sources[0].parts.layers:
            stack = stack_of([*sources, measured], module, [*shares, -1.0], buffers)
            inner = stack.products(stack.grams())
            true = max(float(inner[:-1, :-1].sum()), 0.0) ** 0.5
            apart = max(float(inner.sum()), 0.0) ** 0.5
            error = apart / true if true > 0 else float(np.sign(apart))
            found[module] = LayerReport(measured.parts.layers[module].rank, true, error)
    return found


def with_error(report: Report, spec: StrategySpec, updates: Sequence[Update], into: Path) -> Report:
    """Add the distance from the exact average of the products to the report of an average of factors.

    Args:
        spec: The strategy of the average.
        updates: The averaged updates.
        into: Folder of the average.

    Returns:
        The report with `layers`; unchanged if the strategy does not aim at the average, or clipped an update. If the
        sum of the ranks is too large to measure, the report has a note instead.
    """
    if spec.name not in _MEANS_OF_FACTORS or report.clipped:
        return report
    try:
        layers = product_error(updates, report.weights, update_in(into))
    except InputError as error:
        return replace(report, notes=(*report.notes, f"The error of the average was not measured: {error.message}"))
    return replace(report, layers=layers)
