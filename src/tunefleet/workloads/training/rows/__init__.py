"""Rows to tokens: datasets, packing, streaming."""
