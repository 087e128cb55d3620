"""This machine without Kubernetes: embedded API server, node runner, supervisor."""
