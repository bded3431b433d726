"""The program of a chat: holds a model ready in an engine, and answers turns until it is told to end, or nobody asks.

Knows engines and the line on which it is talked with; knows no server.
"""

from __future__ import annotations

from pathlib import Path


def main(folder: Path) -> None:
    """Hold the chat of a job folder."""
    from tunefleet.workloads.chat.run import run

    run(folder)
