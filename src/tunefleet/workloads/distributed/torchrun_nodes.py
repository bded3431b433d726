"""torchrun arguments of a multi-node training run, and the network interface that the nodes use.

The rendezvous store is on the first node: a static endpoint, known before any process starts, because the node that
reports must be the first. (With torchrun's dynamic rendezvous the ranks follow the order of addresses.)
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import Any

import psutil

from tunefleet.trainer_control.distributed.world import NODE

logger = logging.getLogger(__name__)

_HINT = (
    "All nodes must be able to reach this address and port: check the firewall, and the gang address and port "
    "settings of the first node's worker."
)


def arguments(gang: Mapping[str, Any], processes: int) -> list[str]:
    """Return the arguments of torchrun on one node."""
    return [
        f"--nnodes={gang['nodes']}",
        f"--node-rank={gang['rank']}",
        f"--nproc-per-node={processes}",
        # The server retries the task instead, with all nodes.
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--rdzv-id={gang['id']}",
        f"--rdzv-endpoint={gang['host']}:{gang['port']}",
        f"--rdzv-conf=timeout={int(gang['join_s'])}",
        f"--master-addr={gang['host']}",
        f"--master-port={gang['port']}",
        f"--local-addr={gang['address']}",
    ]


def prepare_environment(gang: Mapping[str, Any]) -> None:
    """Set the node's rank and the network interface in the environment, unless an interface is set already."""
    os.environ[NODE] = str(gang["rank"])
    interface = interface_of(str(gang["address"])) if sys.platform == "linux" else None
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """Return the interface with an address; None if there is none, which lets torch choose."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family in {socket.AF_INET, socket.AF_INET6} and each.address == address for each in addresses):
            return name
    logger.warning("No network interface has the address %s; torch chooses one", address)
    return None


def missed(gang: Mapping[str, Any], error: BaseException) -> str:
    """Return the error message of a failed rendezvous."""
    endpoint = f"{gang['host']}:{gang['port']} within {gang['join_s']:.0f} s"
    lines = str(error).strip().splitlines()
    detail = f" ({lines[0]})" if lines else ""
    if gang["rank"] == 0:
        return f"Not all {gang['nodes']} nodes connected to {endpoint}{detail}. {_HINT}"
    return f"Node {gang['rank']} could not connect to the first node at {endpoint}{detail}. {_HINT}"
