"""Journal and status file of a training run."""
