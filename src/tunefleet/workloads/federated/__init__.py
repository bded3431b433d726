"""A training run as a participant of a federation: background uploads, hot reloads into the adapter being trained.

    callback              `FederatedCallback`, for any trainer
    participation         steps of every rank, FedProx, shared initialization
    live_adapter          tensors of the adapter by their published names
    weight_reload         in-place copy of new values, for any training loop
    optimizer_moments     optimizer state after a reload
    compatibility         versions of another rank or scale
    row_counter           number of trained rows
    state                 accepted uploads, kept across crashes
    update_compression    float32, bfloat16 or int8 updates
    session               connection of rank 0 to the server
    uploader, downloader  its two threads, `delivery` of one update
    contact               retries while the server is unreachable
    mailbox, rank_sync    from rank 0 to all ranks
    options               arguments of the callback

Aggregation and rounds are up to the server. A custom training loop uses `hot_reload`, `RowCounter` and
`tunefleet.FederatedClient`.
"""

from __future__ import annotations

from tunefleet.workloads.federated.callback import FederatedCallback
from tunefleet.workloads.federated.participation import FederationWarning
from tunefleet.workloads.federated.row_counter import RowCounter
from tunefleet.workloads.federated.weight_reload import Reloaded, hot_reload

__all__ = ["FederatedCallback", "FederationWarning", "Reloaded", "RowCounter", "hot_reload"]
