"""Trace -> fleet model -> report, through the gateway's own chooser."""
