"""Primitives for kernel files, shared by the agent's adapters and the node runner.

Reading and writing one value with errno translated in one place (`files`), where each cgroup controller is
mounted (`hierarchy`), and how pods and containers are named below kubepods (`kubepods`).
"""
