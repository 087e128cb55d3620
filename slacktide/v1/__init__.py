"""Stubs generated from proto/slacktide/v1 by proto/generate.py. Never edited by hand."""
