"""Scheduling framework as documented by Kubernetes: extension points, queue, cache."""
