"""Back-tests: recorded usage is read, replayed slot by slot, forecast as the product would, and scored.

Only the command, benchmarks and `predictor.forecast` use this; the running predictor never imports it.
"""
