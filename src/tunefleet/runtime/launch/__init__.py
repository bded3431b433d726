"""How a job is started, and how it has ended."""
