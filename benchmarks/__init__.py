"""Benchmarks and the demo: run from the repository, not part of the distribution."""
