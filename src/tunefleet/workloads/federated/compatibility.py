"""A version in the shape of the adapter that trains: where ranks or scales are mixed, each worker has its own."""

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


def read_fitting(live: LiveAdapter, folder: Path | str) -> Mapping[str, torch.Tensor]:
    """Read an adapter, as what the adapter that trains can take.

    One of another rank or scale is said anew: a smaller rank gets the best part of it, a larger one all of it.
    """
    place = Path(folder).expanduser()
    values, config = read_adapter(place)
    # Out of the file's pages, which may be gone from memory when a step waits for them.
    whole = {name: value.clone() for name, value in values.items()}
    if live.differs_in(config) is not None:
        whole = _refitted(live, place)
    live.check(whole, None)
    return whole


def _refitted(live: LiveAdapter, place: Path) -> dict[str, torch.Tensor]:
    like = read_config(json.dumps(live.described()).encode())
    with tempfile.TemporaryDirectory(prefix="tunefleet-fitted-") as scratch:
        report = refit(update_in(place), like, Path(scratch))
        values, _ = read_adapter(scratch)
        if report.error:
            logger.warning(
                "%s has more in it than the rank %d of the adapter that trains can hold: %.1f %% of it is left out.",
                place.name,
                like.rank,
                100 * report.error,
            )
        return {name: value.clone() for name, value in values.items()}
