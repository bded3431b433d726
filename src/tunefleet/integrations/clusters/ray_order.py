"""Order and status protocol between the server and the program that it starts on a Ray cluster.

Imported by both sides: the server's adapter, and `tunefleet.workloads.ray_nodes` in Ray's environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from tunefleet.integrations.clusters.base import NodeRequest

FORMAT: Final = 2
LASTING: Final = "lasting"
"""Option of an `Ask`: `true` starts between `nodes` and `nodes_max` long-running workers."""
# Option: URL of the server, which is queried for the number of pending tasks.
SERVER: Final = "server"
# Option: an API key for that.
KEY: Final = "key"

WAITING: Final = "tunefleet: waiting: "
RUNNING: Final = "tunefleet: running: "
ENDED: Final = "tunefleet: ended: "
"""Prefixes of status lines in the job's log; other processes cannot write them: Ray prefixes the nodes' output."""

FAILED: Final = 1
AGAIN: Final = 75
"""Exit code of a node's command, or of its termination: run the task again."""
# Exit code: the cluster cannot provide the requested nodes.
HOPELESS: Final = 69


class OrderError(ValueError):
    """The order is not valid for this release."""


def pack(ask: NodeRequest) -> bytes:
    """Serialize an ask."""
    return json.dumps({"format": FORMAT, **asdict(ask)}).encode()


def unpack(text: bytes) -> NodeRequest:
    """Parse an ask.

    Raises:
        OrderError: If it is invalid, or was written by an incompatible release.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields.pop("format") != FORMAT:
            raise OrderError("the server and Ray's environment have incompatible releases of Tunefleet")
        return NodeRequest(**{**fields, "command": tuple(fields["command"])})
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise OrderError(f"the order is invalid: {error}") from error
