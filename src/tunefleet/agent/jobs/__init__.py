"""The agent's jobs: queue, run, journal, log, and what is reported of them."""
