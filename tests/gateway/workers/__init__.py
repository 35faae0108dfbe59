"""Gateways of several processes."""
