"""Callbacks of a Transformers Trainer."""
