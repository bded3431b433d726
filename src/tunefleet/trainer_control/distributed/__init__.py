"""What the ranks of a training tell each other."""
