"""Scheduling: the framework, its plugins, and the hosts that run them."""
