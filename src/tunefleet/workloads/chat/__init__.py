"""The program of a chat session: keeps a model loaded in an engine and answers turns until it ends or is idle.

Independent of the server: turns arrive over a local socket.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Run the chat session of a job folder."""
    from tunefleet.workloads.chat.run import run

    run(folder)
