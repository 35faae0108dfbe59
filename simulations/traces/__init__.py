"""Traces: one reader a format, one columnar form behind them all."""
