"""Tasks: commands, transitions and what follows from them, inputs, checkpoints, shards and ends."""
