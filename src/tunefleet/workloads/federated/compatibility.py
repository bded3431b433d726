"""Converts global versions to the rank and scale of the local adapter; workers of a federation may differ in both."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch

from tunefleet.federation import read_config, refit, update_in
from tunefleet.workloads.federated.live_adapter import LiveAdapter, read_adapter

logger = logging.getLogger("tunefleet.federation")


def read_converted(live: LiveAdapter, folder: Path | str) -> Mapping[str, torch.Tensor]:
    """Read an adapter in the shape of the adapter being trained.

    An adapter of another rank or scale is converted: a smaller rank gets the best approximation, a larger one all of
    it.
    """
    place = Path(folder).expanduser()
    values, config = read_adapter(place)
    # Copied out of the memory-mapped file, whose pages may have been evicted when a training step needs them.
    converted = {name: value.clone() for name, value in values.items()}
    if live.differs_in(config) is not None:
        converted = _refitted(live, place)
    live.check(converted, None)
    return converted


def _refitted(live: LiveAdapter, place: Path) -> dict[str, torch.Tensor]:
    like = read_config(json.dumps(live.described()).encode())
    with tempfile.TemporaryDirectory(prefix="tunefleet-fitted-") as scratch:
        report = refit(update_in(place), like, Path(scratch))
        values, _ = read_adapter(scratch)
        if report.error:
            logger.warning(
                "%s cannot be represented exactly with rank %d of the local adapter: %.1f %% of it is lost.",
                place.name,
                like.rank,
                100 * report.error,
            )
        return {name: value.clone() for name, value in values.items()}
