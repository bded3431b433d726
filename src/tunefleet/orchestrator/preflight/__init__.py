"""Checks before a training task is submitted: dataset, model configuration and memory estimate."""
