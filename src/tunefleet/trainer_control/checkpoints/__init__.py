"""Whole checkpoints: their manifest, and which of them stay."""
