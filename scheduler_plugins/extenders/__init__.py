"""Scheduler extenders over HTTP: what is said on the wire, and the client that asks them."""
