"""Applications of the peers that the benchmarks run beside us."""
