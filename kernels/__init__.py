"""Triton attention kernels, each with a torch twin in `reference`. Importing this package imports nothing."""
