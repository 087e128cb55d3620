"""Predictor: history of usage, forecast of the peak, and what it publishes on each node."""
