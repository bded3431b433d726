"""How commands come into a training."""
