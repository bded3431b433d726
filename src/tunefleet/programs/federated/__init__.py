"""A training as a worker of a federation: uploads beside it, and hot reloads into the adapter that trains.

    callback       `FederatedCallback`, for any trainer   participation   what every rank does at the end of a step
    adapter        the adapter by its published names     reload          values copied in place, for any loop
    moments        what becomes of the optimizer's state  proximal        FedProx
    fitting        a version of another rank or scale
    counting       rows that were trained on              beginning       one beginning for all workers
    progress       what was uploaded, over crashes        packing         float32, bfloat16, 8 bits
    courier        rank 0's end of the line               uploader, follower   its two threads
    contact        a server that is away                  mailbox, together    from one rank to all
    options        what was asked for

Averages nothing and knows no round: that is the server's. Whoever writes his own loop uses `hot_reload`, `RowCounter`
and `tunefleet.FederatedClient`.
"""

from __future__ import annotations

from tunefleet.programs.federated.callback import FederatedCallback
from tunefleet.programs.federated.counting import RowCounter
from tunefleet.programs.federated.participation import FederationWarning
from tunefleet.programs.federated.reload import Reloaded, hot_reload

__all__ = ["FederatedCallback", "FederationWarning", "Reloaded", "RowCounter", "hot_reload"]
