"""Communication between the ranks of a training run, outside of its collectives."""
