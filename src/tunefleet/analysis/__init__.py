"""Analysis of rows, model sizes and results, without a training library."""
