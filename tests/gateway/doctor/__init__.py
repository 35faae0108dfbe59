"""Tests of the doctor."""
