"""The fleet as this server sees it: workers and agents, what they can run, and what they are busy with."""
