"""The job runtime: launch, adopt, control and end job processes, and deliver their output.

A job is a separate process group that outlives the process that started it; its whole state is in its job folder. The
package does not depend on the server, a transport or a training library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunefleet.runtime.exit_classification import JobEnd
    from tunefleet.runtime.handle import JobHandle
    from tunefleet.runtime.log_shipper import JournalShipper, Sink
    from tunefleet.runtime.supervisor import Supervisor, new_launch_id

__all__ = ["JobEnd", "JobHandle", "JournalShipper", "Sink", "Supervisor", "new_launch_id"]

_HOMES = {
    "JobEnd": "exit_classification",
    "JobHandle": "handle",
    "JournalShipper": "log_shipper",
    "Sink": "log_shipper",
    "Supervisor": "supervisor",
    "new_launch_id": "supervisor",
}


def __getattr__(name: str) -> Any:
    # Lazy: there is one parent process per job, which must not import what only the supervisor needs.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
