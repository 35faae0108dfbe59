"""Choosing a replica: pure, without I/O or clock; the simulator runs the very same code."""
