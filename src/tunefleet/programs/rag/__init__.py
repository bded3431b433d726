"""Texts in a vector database, and searching it.

    database   a Qdrant server, or its embedded mode in a folder    chunks      long texts in pieces
    indexing   the run of a `rag_index` task                        searching   the run of a `rag` task

`job.json` names `tunefleet.programs.rag:index` and `tunefleet.programs.rag:search`.
"""

from __future__ import annotations

from pathlib import Path


def index(folder: Path) -> None:
    """Run a `rag_index` task; see `rag.indexing.run`."""
    from tunefleet.programs.rag.indexing import run

    run(folder)


def search(folder: Path) -> None:
    """Run a `rag` task; see `rag.searching.run`."""
    from tunefleet.programs.rag.searching import run

    run(folder)
