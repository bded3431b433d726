"""What torchrun is told of a training on several machines, and which network the nodes talk over.

The first node's agent holds the store in which all meet: a fixed place, known before any process starts, since the
node that reports must be the first. (With torchrun's dynamic rendezvous the ranks follow the order of addresses.)
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

_WAY_OUT = (
    "All machines of the training must be able to reach that address and port: look at the firewall, and at the "
    "settings of the first node's worker for its address and ports in a gang."
)


def arguments(gang: Mapping[str, Any], processes: int) -> list[str]:
    """Return what torchrun is told."""
    return [
        f"--nnodes={gang['nodes']}",
        f"--node-rank={gang['rank']}",
        f"--nproc-per-node={processes}",
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
    """Name the node, and the network interface that the nodes talk over, unless it is named already."""
    os.environ[NODE] = str(gang["rank"])
    interface = interface_of(str(gang["address"])) if sys.platform == "linux" else None
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)


def interface_of(address: str) -> str | None:
    """Return the interface that has an address; None if none has, so that torch chooses."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family in {socket.AF_INET, socket.AF_INET6} and each.address == address for each in addresses):
            return name
    logger.warning("No network interface has the address %s; torch chooses one", address)
    return None


def missed(gang: Mapping[str, Any], error: BaseException) -> str:
    """Say that the nodes did not meet."""
    where = f"{gang['host']}:{gang['port']} within {gang['join_s']:.0f} s"
    said = str(error).strip().splitlines()
    detail = f" ({said[0]})" if said else ""
    if gang["rank"] == 0:
        return f"Not all {gang['nodes']} nodes came to {where}{detail}. {_WAY_OUT}"
    return f"Node {gang['rank']} could not meet the first node at {where}{detail}. {_WAY_OUT}"
