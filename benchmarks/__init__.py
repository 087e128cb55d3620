"""Benchmarks: `python -m benchmarks.NAME [--quick] --output json`, each a ratio against a baseline of the same run."""
