"""One model for each task type."""
