"""Texts as vectors.

    encoder   loads a model and makes vectors with it      pooling   without sentence-transformers: a mean over tokens
    kept      vectors on disk while they are made          recipe    the run from beginning to end

`job.json` names it `tunefleet.programs.embed:main`.
"""

from __future__ import annotations

from tunefleet.programs.embed.recipe import run as main

__all__ = ["main"]
