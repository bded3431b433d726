"""Aggregates updates with a strategy: files in, one adapter and a report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from tunefleet.errors import InputError
from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig
from tunefleet.federation.aggregation import by_factors, by_products
from tunefleet.federation.aggregation.averaging_job import AveragingJob, LayerReport, Report
from tunefleet.federation.aggregation.exact import Terms
from tunefleet.federation.aggregation.linear import recipe
from tunefleet.federation.aggregation.sources import Update, opened, update_in
from tunefleet.federation.aggregation.stacks import stack_of
from tunefleet.federation.floats import Buffers
from tunefleet.spec.options.federation_options import StrategyName, StrategySpec

_RULES: Final[Mapping[StrategyName, Callable[[AveragingJob], AdapterConfig]]] = {
    "fedavg": by_factors.mean,
    "fedprox": by_factors.mean,
    "fedadam": by_factors.mean,
    "fedyogi": by_factors.mean,
    "diloco": by_factors.mean,
    "median": by_factors.ordered,
    "trimmed_mean": by_factors.ordered,
    "fedavg_exact": by_products.mean,
    "krum": by_products.nearest,
    "multi_krum": by_products.nearest,
}
# Strategies that approximate the average with factors; the others do not aim at the average.
_MEANS_OF_FACTORS: Final[frozenset[StrategyName]] = frozenset({"fedavg", "fedprox"})


def aggregate(
    updates: Sequence[Update],
    spec: StrategySpec,
    *,
    into: Path,
    previous: Update | None = None,
    state: Path | None = None,
    new_state: Path | None = None,
    dtype: str | None = None,
) -> Report:
    """Aggregate updates.

    Updates are read in blocks: memory does not grow with their number (for averages of products, it grows with the
    square of the sum of their ranks: 8 MB per matrix for 64 updates of rank 16). Their order does not change a single
    bit of the output.

    Args:
        updates: One per worker; validated before (`contract.check`).
        spec: The strategy with its options.
        into: An existing folder; gets `adapter_model.safetensors` and `adapter_config.json`, and with
            `output: residual` the folder `residual` with the same two. Files appear atomically, but are not synced.
        previous: The global adapter that the updates started from; `None` before the first version. Only the server
            optimizers and norm clipping use it.
        state: The server optimizer's state of the previous version (`fedadam`, `fedyogi`, `diloco`).
        new_state: Output file of its new state; required by these three.
        dtype: Output type `F32`, `BF16` or `F16`. Default: that of the updates.

    Returns:
        The report. Its weights sum to one over the updates that count.

    Raises:
        AdapterRefused: If the updates do not match, or a value does not fit the output type.
        InputError: If there are too few updates, or the state belongs to another strategy.

    Shapes:
        ``A: (rank, columns)``, ``B: (rows, rank)`` per layer; the output rank is `spec.rank`, or the updates'.
    """
    began = time.perf_counter()
    with opened(updates, previous) as (sources, before):
        job = AveragingJob(spec, sources, before, into, dtype, state, new_state)
        return _finish(job, spec.name, _RULES[spec.name](job), began)


def refit(source: Update, like: AdapterConfig, into: Path, *, dtype: str | None = None) -> Report:
    """Convert an adapter to another rank or scale: the nearest one with the given config.

    A worker whose rank differs from the federation's loads the global adapter this way: a smaller rank gets the best
    approximation; a larger one gets all of it, and additional random rows of A with zeros in B, which can be trained.

    Args:
        like: The output config, with the same target modules.

    Raises:
        AdapterRefused: If the adapter is not supported.
    """
    began = time.perf_counter()
    with opened([source], None) as (sources, _):
        job = AveragingJob(StrategySpec(name="fedavg_exact"), sources, None, into, dtype)
        whole = recipe(sources, job.shares())
        by_products.write(
            job, Terms(sources, [1.0], sources[0]), like, {name: whole[name] for name in sources[0].parts.whole}
        )
        return _finish(job, "refit", like, began)


def _finish(job: AveragingJob, strategy: str, config: AdapterConfig, began: float) -> Report:
    (job.into / CONFIG).write_bytes(config.to_json())
    kinds = {job.dtype_of(name) for name in job.sources[0].file.tensors}
    return Report(
        strategy=strategy,
        weights=job.weights,
        rank=config.rank,
        dtype=kinds.pop() if len(kinds) == 1 else "mixed",
        bytes_read=sum(source.file.size_bytes for source in job.sources),
        bytes_written=job.bytes_written,
        seconds=time.perf_counter() - began,
        excluded=job.excluded,
        norms=job.norms,
        clipped=job.clipped,
        scores=job.scores,
        layers=job.layers,
        residual=f"{by_products.RESIDUAL}/{TENSORS}" if job.spec.output == "residual" else None,
        notes=tuple(job.notes),
    )


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
