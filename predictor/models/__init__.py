"""Forecast models: pure arrays in, quantiles of the peak out, one model a file."""
