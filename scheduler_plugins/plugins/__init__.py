"""Scheduling plugins, one a file."""
