"""A training as a worker of a federation: uploads beside it, and hot reloads into the adapter that trains.

    callback              `FederatedCallback`, for any trainer
    participation         what every rank does at the end of a step
    live_adapter          the adapter by its published names
    weight_reload         values copied in place, for any loop
    optimizer_moments     what becomes of the optimizer's state
    fedprox               FedProx
    compatibility         a version of another rank or scale
    row_counter           rows that were trained on
    initialization        one beginning for all workers
    state                 what was uploaded, over crashes
    update_compression    float32, bfloat16, 8 bits
    session               rank 0's end of the line
    uploader, downloader  its two threads
    contact               a server that is away
    mailbox, rank_sync    from one rank to all
    options               what was asked for

Averages nothing and knows no round: that is the server's. Whoever writes his own loop uses `hot_reload`, `RowCounter`
and `tunefleet.FederatedClient`.
"""

from __future__ import annotations

from tunefleet.workloads.federated.callback import FederatedCallback
from tunefleet.workloads.federated.participation import FederationWarning
from tunefleet.workloads.federated.row_counter import RowCounter
from tunefleet.workloads.federated.weight_reload import Reloaded, hot_reload

__all__ = ["FederatedCallback", "FederationWarning", "Reloaded", "RowCounter", "hot_reload"]
