"""Tests of the kernels package, under Triton's interpreter."""
