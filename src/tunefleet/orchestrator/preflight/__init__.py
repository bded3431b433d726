"""Checks before a workflow is submitted: dataset, model configuration, memory estimate and placement forecast."""
