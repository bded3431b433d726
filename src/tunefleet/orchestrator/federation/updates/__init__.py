"""Updates of a federation's workers: upload, validation, weighting and acceptance."""
