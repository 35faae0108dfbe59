"""Tests of the waiting line."""
