"""Embedded API server: the part of the Kubernetes API that Slacktide uses, on SQLite and a Unix socket."""
