"""Workflows: submission, reruns, dependencies, merging of shards and pruning."""
