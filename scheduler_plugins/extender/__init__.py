"""Extender host: the same plugins as in the second scheduler, asked over HTTP by a stock scheduler."""
