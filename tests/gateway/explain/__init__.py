"""Tests of explaining requests."""
