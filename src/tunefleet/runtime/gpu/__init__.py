"""The GPUs of this machine: what they are, and which job has which."""
