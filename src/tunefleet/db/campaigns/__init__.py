"""Rows of campaigns, their cycles, models and costs."""
