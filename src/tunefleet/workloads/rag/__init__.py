"""Retrieval: indexing texts in a vector database, and searching it.

    vector_db  a Qdrant server, or its embedded mode in a folder
    chunking   long texts in chunks
    indexer    the program of a `rag_index` task
    retriever  the program of a `rag` task

`job.json` names `tunefleet.workloads.rag:index` and `tunefleet.workloads.rag:search`.
"""

from __future__ import annotations

from pathlib import Path


def index(folder: Path) -> None:
    """Run a `rag_index` task; see `rag.indexer.run`."""
    from tunefleet.workloads.rag.indexer import run

    run(folder)


def search(folder: Path) -> None:
    """Run a `rag` task; see `rag.retriever.run`."""
    from tunefleet.workloads.rag.retriever import run

    run(folder)
