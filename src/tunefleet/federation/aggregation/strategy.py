"""Average updates by a strategy: files in, one adapter and a report out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tunefleet.federation.adapter import CONFIG, TENSORS, AdapterConfig
from tunefleet.federation.aggregation import by_factors, by_products
from tunefleet.federation.aggregation.averaging_job import Making
from tunefleet.federation.aggregation.exact import Terms
from tunefleet.federation.aggregation.linear import recipe
from tunefleet.federation.aggregation.report import Report
from tunefleet.federation.aggregation.sources import Update, opened
from tunefleet.spec.options.federation_options import StrategyName, StrategySpec

_RULES: Final[Mapping[StrategyName, Callable[[Making], AdapterConfig]]] = {
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
    """Average updates.

    Reads the updates block by block: memory does not grow with how many there are (of averages of products, with the
    square of the sum of their ranks: 8 MB a matrix for 64 of rank 16). Their order changes no bit of the outcome.

    Args:
        updates: One per worker; checked before (`contract.check`).
        spec: The strategy with its options.
        into: An existing folder; gets `adapter_model.safetensors` and `adapter_config.json`, and with
            `output: residual` the folder `residual` with the same two. Files appear whole, and are not synced.
        previous: The global adapter that the updates began from; null before the first version. The server optimisers
            and norm clipping are about the change since then; the others do not look at it.
        state: The server optimiser's state after the version before (`fedadam`, `fedyogi`, `diloco`).
        new_state: Where its state after this version is written; those three need it.
        dtype: `F32`, `BF16` or `F16` of the outcome; by default that of the updates.

    Returns:
        What was done. Its weights sum to one over the updates that count.

    Raises:
        AdapterRefused: If the updates do not fit each other, or the outcome's type cannot hold it.
        InputError: If there are too few of them, or the state is another strategy's.

    Shapes:
        ``A: (rank, columns)``, ``B: (rows, rank)`` per layer; the outcome's rank is `spec.rank`, or the updates'.
    """
    began = time.perf_counter()
    with opened(updates, previous) as (sources, before):
        made = Making(spec, sources, before, into, dtype, state, new_state)
        return _finish(made, spec.name, _RULES[spec.name](made), began)


def refit(source: Update, like: AdapterConfig, into: Path, *, dtype: str | None = None) -> Report:
    """Say an adapter with another rank or scale: the nearest one that a config allows.

    A worker whose rank is not the federation's loads the global adapter this way: a smaller rank gets the best part of
    it; a larger one gets all of it, and random rows of A beside zeros in B, which can learn.

    Args:
        like: The config that the outcome has; it has the same target modules.

    Raises:
        AdapterRefused: If the adapter is not understood.
    """
    began = time.perf_counter()
    with opened([source], None) as (sources, _):
        made = Making(StrategySpec(name="fedavg_exact"), sources, None, into, dtype)
        whole = recipe(sources, made.shares())
        by_products.write(
            made, Terms(sources, [1.0], sources[0]), like, {name: whole[name] for name in sources[0].parts.whole}
        )
        return _finish(made, "refit", like, began)


def _finish(made: Making, strategy: str, config: AdapterConfig, began: float) -> Report:
    (made.into / CONFIG).write_bytes(config.to_json())
    kinds = {made.dtype_of(name) for name in made.sources[0].file.tensors}
    return Report(
        strategy=strategy,
        weights=made.weights,
        rank=config.rank,
        dtype=kinds.pop() if len(kinds) == 1 else "mixed",
        bytes_read=sum(source.file.size_bytes for source in made.sources),
        bytes_written=made.bytes_written,
        seconds=time.perf_counter() - began,
        excluded=made.excluded,
        norms=made.norms,
        clipped=made.clipped,
        scores=made.scores,
        layers=made.layers,
        residual=f"{by_products.RESIDUAL}/{TENSORS}" if made.spec.output == "residual" else None,
        notes=tuple(made.notes),
    )
