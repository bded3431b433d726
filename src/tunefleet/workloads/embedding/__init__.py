"""Texts as vectors.

    encoder       loads a model and makes vectors with it
    pooling       without sentence-transformers: a mean over tokens
    vector_cache  vectors on disk while they are made
    run           the run from beginning to end

`job.json` names it `tunefleet.workloads.embedding:main`.
"""

from __future__ import annotations

from tunefleet.workloads.embedding.run import run as main

__all__ = ["main"]
