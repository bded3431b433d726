"""Text embeddings.

    encoder       loads a model and computes vectors
    pooling       models without sentence-transformers: pooling over tokens
    vector_cache  finished vectors on disk
    run           the program

`job.json` names it `tunefleet.workloads.embedding:main`.
"""

from __future__ import annotations

from tunefleet.workloads.embedding.run import run as main

__all__ = ["main"]
