"""One task: its commands, its transitions, its inputs and checkpoints, its end, and how it is done again."""
