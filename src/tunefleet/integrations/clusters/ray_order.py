"""What the server tells the program that it starts on a Ray cluster, and what that says in return.

Both sides import this module: the server's adapter, and `tunefleet.workloads.ray_nodes` in Ray's environment.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from tunefleet.integrations.clusters.base import Ask

FORMAT: Final = 2
LASTING: Final = "lasting"
"""An option of an `Ask`: `true` starts workers that last, between `nodes` and `nodes_max` of them."""
# An option: the address of the server, which is asked how many tasks wait.
SERVER: Final = "server"
# An option: a key for that.
KEY: Final = "key"

WAITING: Final = "tunefleet: waiting: "
RUNNING: Final = "tunefleet: running: "
ENDED: Final = "tunefleet: ended: "
"""How a line of the job's log begins that says where it stands; no other process writes one, for Ray puts a prefix
before what the nodes print."""

FAILED: Final = 1
AGAIN: Final = 75
"""A node's command ended so, or was to be ended: the task is to be run again."""
# The cluster cannot give what is asked.
HOPELESS: Final = 69


class OrderError(ValueError):
    """What lies there is no order that this release understands."""


def pack(ask: Ask) -> bytes:
    """Return an ask as it is handed over."""
    return json.dumps({"format": FORMAT, **asdict(ask)}).encode()


def unpack(text: bytes) -> Ask:
    """Read an ask.

    Raises:
        OrderError: If another release wrote it.
    """
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields.pop("format") != FORMAT:
            raise OrderError("the server and Ray's environment have releases of Tunefleet that do not go together")
        return Ask(**{**fields, "command": tuple(fields["command"])})
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise OrderError(f"the order cannot be read: {error}") from error
