"""Engines that answer prompts with a model: what they are asked and what they give, whatever computes it.

Knows models, adapters and how answers are drawn; knows no task, job folder or file of a user's.
"""
