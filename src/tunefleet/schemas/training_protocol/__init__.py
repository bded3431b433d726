"""Bodies of the training protocol."""
