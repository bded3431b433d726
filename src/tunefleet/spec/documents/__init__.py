"""A whole file: its stages and their dependencies, what is checked across them, and messages for faults."""
