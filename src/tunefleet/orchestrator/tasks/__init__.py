"""Tasks: commands, transitions, inputs, checkpoints, ends and retries."""
