"""Inference engines with a common protocol, backed by Transformers or vLLM.

Depends on models, adapters and sampling parameters, never on tasks, job folders or user files.
"""
