"""Adapters to the kernel and the hardware of a node, each rooted at an injected path."""
