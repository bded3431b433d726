"""Run every benchmark beside its peers and write `docs/benchmarks.md` of what they found: `make bench`."""
