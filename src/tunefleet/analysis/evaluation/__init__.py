"""Confidence intervals of metrics, and comparison of two models on the same items. Standard library only.

Independent of models and of how a metric is computed. Evaluation jobs, the CLI and the promotion gate of a campaign use
it.
"""
