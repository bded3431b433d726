"""The program of an endpoint: an OpenAI-compatible HTTP server on a Unix socket, until it is asked to end.

Independent of the control plane: the worker relays requests to the socket.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the HTTP server of a job folder."""
    from tunefleet.workloads.serve.run import run

    run(folder)
