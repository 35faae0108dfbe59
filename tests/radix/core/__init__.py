"""Tests of the compiled index."""
