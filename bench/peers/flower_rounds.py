"""Rounds of Flower's simulation with echo clients: `python flower_rounds.py MIB CLIENTS ROUNDS`; prints JSON.

Runs in Flower's own environment; the shapes of the adapter are `_echo`'s. The clients are Ray's actors on this machine:
nothing goes over a network, and nothing is stored. The first round, in which the actors start, is not timed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from _echo import shapes

client = ClientApp()
server = ServerApp()
MIB, CLIENTS, ROUNDS = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


@client.train()
def echo(message: Message, _context: Context) -> Message:
    """Send back what came."""
    content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1.0})}
    return Message(RecordDict(content), reply_to=message)


@server.main()
def main(grid: Grid, _context: Context) -> None:
    """Run the rounds and print how many there are in a second."""
    rng = np.random.default_rng(0)
    arrays = {name: Array(rng.standard_normal(shape, np.float32) / 64) for name, shape in shapes(MIB).items()}
    first = ArrayRecord(arrays)
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS, min_train_nodes=CLIENTS)
    strategy.start(grid=grid, initial_arrays=first, num_rounds=1)
    began = time.perf_counter()
    strategy.start(grid=grid, initial_arrays=first, num_rounds=ROUNDS)
    print(json.dumps({"rounds_per_s": ROUNDS / (time.perf_counter() - began)}), flush=True)


if __name__ == "__main__":
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
